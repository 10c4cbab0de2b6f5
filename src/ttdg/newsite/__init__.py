from ttdg.newsite.predict import Outcome, predict

__all__ = ["Outcome", "predict"]
