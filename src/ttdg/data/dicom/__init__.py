"""DICOM images: headers without identifying tags, frames as 8-bit pictures, and series of slices."""

# The header of an image file, and whether a file is DICOM.
from ttdg.data.dicom.header import (
    DicomImage,
    NoImageError,
    has_dicom_suffix,
    is_signed,
    read_dicom_header,
    read_identity,
    silence,
)

# Decoded frames: for a viewer's eye, or as physical values.
from ttdg.data.dicom.pixels import frame_picture, frame_values, read_dicom_image, read_dicom_mask

# Files of one series as a volume.
from ttdg.data.dicom.series import group_by_series, position_along_normal

__all__ = [
    "DicomImage",
    "NoImageError",
    "frame_picture",
    "frame_values",
    "group_by_series",
    "has_dicom_suffix",
    "is_signed",
    "position_along_normal",
    "read_dicom_header",
    "read_dicom_image",
    "read_dicom_mask",
    "read_identity",
    "silence",
]
