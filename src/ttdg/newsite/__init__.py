"""Segmenting a folder of unlabelled images from a new site, with adaptation."""

# `predict` segments the folder; `FolderResult` counts what it did.
from ttdg.newsite.predict import FolderResult, predict

__all__ = ["FolderResult", "predict"]
