"""Unlabelled images of a new site: reading them in batches, and recognising constant frames and noise."""

# Image files, and the frames of DICOM and NIfTI files.
from ttdg.data.unlabelled.frames import DIGEST, InputFile, Stack

# Their decoded batches.
from ttdg.data.unlabelled.images import NewBatch, NewImage, Refused, read_new_images

# Constant frames and noise.
from ttdg.data.unlabelled.kind import unusual_kind

__all__ = [
    "DIGEST",
    "InputFile",
    "NewBatch",
    "NewImage",
    "Refused",
    "Stack",
    "read_new_images",
    "unusual_kind",
]
