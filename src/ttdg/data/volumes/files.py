"""Volumes on disk, whatever their format: NIfTI files, and folders with a DICOM series."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ttdg.data.volumes.dicom_series import is_series, series_geometry, series_slice
from ttdg.data.volumes.nifti import Geometry, image_slice, is_volume, mask_slice, read_geometry, volume_stem


def holds_volume(path: Path) -> bool:
    """Return True for a NIfTI file and for a folder with a DICOM series."""
    return is_volume(path) or is_series(path)


def case_name(path: Path) -> str:
    """Return the name of the case that a file or folder is: its name without the suffix."""
    if is_volume(path):
        return volume_stem(path)
    return path.name if path.is_dir() else path.stem


def volume_geometry(path: Path) -> Geometry:
    """Return the geometry of a volume after it was turned, from headers alone."""
    return series_geometry(path) if path.is_dir() else read_geometry(path)


def volume_slice(path: Path, number: int, *, clip: bool) -> UInt8[np.ndarray, "h w 3"]:
    """Return an axial slice in 8-bit RGB. The range of the volume becomes 0…255, or with `clip` its 5–95 %."""
    return (series_slice if path.is_dir() else image_slice)(path, number, clip=clip)


def volume_mask_slice(path: Path, number: int, image: Path) -> UInt8[np.ndarray, "h w"]:
    """Return the raw values of a slice of a NIfTI mask, which must have the geometry of its image."""
    return mask_slice(path, number, lambda: volume_geometry(image), image.name)
