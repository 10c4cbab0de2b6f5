"""Unlabelled images of a new site: reading them in batches, and recognising constant frames and noise."""

# Image files, and their decoded batches.
from ttdg.data.unlabelled.images import InputFile, NewBatch, NewImage, Refused, read_new_images

# Constant frames and noise.
from ttdg.data.unlabelled.kind import unusual_kind

__all__ = ["InputFile", "NewBatch", "NewImage", "Refused", "read_new_images", "unusual_kind"]
