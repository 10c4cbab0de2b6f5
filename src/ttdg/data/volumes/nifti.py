"""NIfTI files: volumes whose slices are cases.

The affine of a file says how its voxels lie in the patient. Volumes are turned so that slices are axial and come from
the feet to the head. In a slice, rows run from front to back and columns from the patient's right to the left. The
spacing of the three axes may differ and is kept. An oblique volume is turned to the nearest axes, without resampling.

A process keeps two images and two masks in memory. Cases in the order of their files therefore decode each file once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from ttdg.data.bit_depth import stretch_to_bytes
from ttdg.data.raster import DAMAGE
from ttdg.errors import UserError

SUFFIXES = (".nii.gz", ".nii")
AXES = "LPS"  # voxel axes x, y, z point to the patient's left, back and head
CLIP = (5, 95)  # percentiles of a volume to which `clipped-zscore` limits intensities
KEPT = 2  # decoded volumes of each kind
Bytes = UInt8[np.ndarray, "d h w"]

_lock = Lock()
_kept: dict[str, dict[tuple[Path, int, int], Bytes]] = {}  # kind → (path, time, size) → volume, oldest first


@dataclass(frozen=True)
class Geometry:
    """Shape and position of a volume after it was turned; all axes in the order z, y, x."""

    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]  # millimetres
    affine: Float[np.ndarray, "4 4"]  # of the file


def is_volume(path: Path) -> bool:
    """Return True if the name of the file is that of a NIfTI file."""
    return path.name.lower().endswith(SUFFIXES)


def volume_stem(path: Path) -> str:
    """Return the file name without `.nii` or `.nii.gz`."""
    suffix = next(suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix))
    return path.name[: -len(suffix)]


def read_geometry(path: Path) -> Geometry:
    """Return the geometry of a volume, from the header alone."""
    file = _open(path)
    turn = _turn(file.affine)
    shape, spacing = np.empty(3, int), np.empty(3)
    for axis, (place, _) in enumerate(turn.astype(int)):
        shape[place], spacing[place] = file.shape[axis], np.linalg.norm(file.affine[:3, axis])
    (x, y, z), (width, height, depth) = spacing.tolist(), shape.tolist()
    return Geometry((depth, height, width), (z, y, x), file.affine)


def read_volume(path: Path) -> Float[np.ndarray, "d h w"]:
    """Return the values of a volume, turned to axial slices."""
    import nibabel

    file = _open(path)
    try:
        values = np.asarray(file.dataobj, np.float32).reshape(file.shape[:3])
    except DAMAGE as error:
        raise UserError(f"{path} is truncated or damaged ({error}); copy or export it again") from None
    return np.ascontiguousarray(
        nibabel.orientations.apply_orientation(values, _turn(file.affine)).transpose(2, 1, 0)
    )


def image_slice(path: Path, number: int, *, clip: bool) -> UInt8[np.ndarray, "h w 3"]:
    """Return a slice in 8-bit RGB. The range of the volume becomes 0…255, or with `clip` its 5–95 %."""

    def load(path: Path) -> Bytes:
        values = read_volume(path)
        if clip:
            values = np.clip(values, *np.percentile(values, CLIP))
        return stretch_to_bytes(values, path)

    grey = _slices("clipped" if clip else "whole", path, load)[number]
    return np.stack([grey, grey, grey], axis=-1)


def mask_slice(path: Path, number: int, image: Path) -> UInt8[np.ndarray, "h w"]:
    """Return the raw values of a slice of a mask, which must have the geometry of its image."""

    def load(path: Path) -> Bytes:
        mine, other = read_geometry(path), read_geometry(image)
        if mine.shape != other.shape or not np.allclose(mine.affine, other.affine, atol=1e-2):
            raise UserError(
                f"{path} has another shape or affine than its image {image.name}; draw the mask on this image, or "
                "resample one of them"
            )
        values = read_volume(path)
        if not np.isin(values, np.arange(256)).all():
            raise UserError(f"{path} is a mask with values other than 0…255; save labels as small integers")
        return values.astype(np.uint8)

    return _slices("mask", path, load)[number]


def _slices(kind: str, path: Path, load: Callable[[Path], Bytes]) -> Bytes:
    """Return a decoded volume, kept from an earlier call if its file did not change. One thread decodes at a time."""
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(
            f"cannot open {path} ({error.strerror}); check its name and your permissions"
        ) from None
    key = path, stat.st_mtime_ns, stat.st_size
    with _lock:
        kept = _kept.setdefault(kind, {})
        if key in kept:
            kept[key] = kept.pop(key)  # now the most recently used
        else:
            if len(kept) == KEPT:
                del kept[next(iter(kept))]
            kept[key] = load(path)
        return kept[key]


def _turn(affine: Float[np.ndarray, "4 4"]) -> Float[np.ndarray, "3 2"]:
    from nibabel import orientations

    return orientations.ornt_transform(
        orientations.io_orientation(affine), orientations.axcodes2ornt(tuple(AXES))
    )


def _open(path: Path) -> Any:
    """Open a file without reading its voxels."""
    import nibabel
    from nibabel.filebasedimages import ImageFileError

    try:
        file: Any = nibabel.load(path)
        affine = file.affine
    except (ImageFileError, *DAMAGE) as error:
        raise UserError(f"{path} cannot be read as NIfTI ({error}); copy or export it again") from None
    if len(file.shape) < 3 or any(side != 1 for side in file.shape[3:]):
        raise UserError(f"{path} has the shape {file.shape} instead of three axes; save one volume in a file")
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine[:3, :3]) < 3:
        raise UserError(f"{path} has an affine without volume; export it again with its geometry")
    return file
