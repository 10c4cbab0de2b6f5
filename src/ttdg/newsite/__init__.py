"""Segmenting the unlabelled images of a new site, with adaptation."""

# `predict` segments files and folders; `FolderResult` counts what it did; `default_method` suits a model.
from ttdg.newsite.predict import predict
from ttdg.newsite.result import FolderResult
from ttdg.newsite.run import default_method

__all__ = ["FolderResult", "default_method", "predict"]
