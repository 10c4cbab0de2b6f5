from ttdg.newsite.predict import FolderResult, predict

__all__ = ["FolderResult", "predict"]
