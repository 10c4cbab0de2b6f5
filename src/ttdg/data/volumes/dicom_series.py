"""Folders of DICOM files as volumes of a benchmark: one series, sorted by position and turned to axial slices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from ttdg.data.dicom import (
    DicomImage,
    NoImageError,
    frame_values,
    group_by_series,
    has_dicom_suffix,
    is_signed,
    position_along_normal,
    read_dicom_header,
)
from ttdg.data.volumes.kept import check_voxels, file_key, kept_volume, volume_bytes
from ttdg.data.volumes.nifti import Geometry, geometry_of, to_axial
from ttdg.errors import UserError

UNEVEN = 0.05  # largest difference between the distances of neighbouring slices, as a share


def is_series(path: Path) -> bool:
    """Return True for a folder whose first file is DICOM."""
    if not path.is_dir():
        return False
    first = next(iter(_files(path)), None)
    if first is None:
        return False
    with first.open("rb") as file:
        return is_signed(file.read(132)) or has_dicom_suffix(first)


def series_geometry(folder: Path) -> Geometry:
    """Return the geometry of the series in a folder, from its headers."""
    slices = _slices(folder)
    return geometry_of((slices[0].columns, slices[0].rows, len(slices)), _affine(slices))


def series_slice(folder: Path, number: int, *, clip: bool) -> UInt8[np.ndarray, "h w 3"]:
    """Return an axial slice in 8-bit RGB. The range of the volume becomes 0…255, or with `clip` its 5–95 %."""

    def load() -> UInt8[np.ndarray, "d h w"]:
        slices = _slices(folder)
        values = stacked_values([(image, 0) for image in slices], folder)
        return volume_bytes(to_axial(values.transpose(2, 1, 0), _affine(slices)), folder, clip=clip)

    grey = kept_volume("clipped" if clip else "whole", file_key(folder), load)[number]
    return np.stack([grey, grey, grey], axis=-1)


def read_series(folder: Path) -> Any:
    """Return the series in a folder as a NIfTI image, in the order of its slices."""
    from nibabel import Nifti1Image

    slices = _slices(folder)
    values = stacked_values([(image, 0) for image in slices], folder)
    return Nifti1Image(values.transpose(2, 1, 0), _affine(slices))


def stacked_values(frames: Sequence[tuple[DicomImage, int]], path: Path) -> Float[np.ndarray, "d h w"]:
    """Return the physical values of frames of one size; `path` is named in error messages."""
    first = frames[0][0]
    check_voxels(len(frames) * first.rows * first.columns, path)
    values = np.empty((len(frames), first.rows, first.columns), np.float32)
    for number, (image, frame) in enumerate(frames):
        values[number] = frame_values(image, frame)
    return values


def _slices(folder: Path) -> list[DicomImage]:
    """Return the slices of the only series of a folder, evenly spaced."""
    images = []
    for path in _files(folder):
        try:
            images.append(read_dicom_header(path))
        except NoImageError:
            continue
    if (loose := next((image for image in images if not image.placed), None)) is not None:
        raise UserError(
            f"{folder} holds {loose.path.name}, which does not say where it lies in the patient; export the series "
            "with position, orientation, pixel spacing and frame of reference, or convert it to NIfTI"
        )
    groups = group_by_series(images)
    if len(groups) == 1 and len(groups[0]) < 2:
        raise UserError(
            f"{folder} holds a single DICOM file, and a series has a file for each of its slices; convert the file to "
            "NIfTI"
        )
    if len(groups) != 1:
        raise UserError(
            f"{folder} holds {len(groups)} DICOM volumes instead of one; keep one series in a folder"
        )
    gaps = np.diff([position_along_normal(image) for image in groups[0]])
    if gaps.max() - gaps.min() > UNEVEN * gaps.mean():
        raise UserError(
            f"{folder} has slices at uneven distances; add the missing files, or remove the series"
        )
    return groups[0]


def _affine(slices: Sequence[DicomImage]) -> Float[np.ndarray, "4 4"]:
    """Return the affine from (column, row, slice) to millimetres, with the axes of NIfTI: right, front, head."""
    first, last = slices[0], slices[-1]
    start, end = np.array(first.positions[0]), np.array(last.positions[0])
    assert first.spacing is not None  # as it is placed
    y, x = first.spacing
    affine = np.eye(4)
    affine[:3, 0] = np.array(first.orientation[:3]) * x
    affine[:3, 1] = np.array(first.orientation[3:]) * y
    affine[:3, 2] = (end - start) / (len(slices) - 1)
    affine[:3, 3] = start
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
