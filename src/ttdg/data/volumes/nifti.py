"""NIfTI files: volumes whose slices are cases.

The affine of a file says how its voxels lie in the patient. Volumes are turned so that slices are axial and come from
the feet to the head. In a slice, rows run from front to back and columns from the patient's right to the left. The
spacing of the three axes may differ and is kept. An oblique volume is turned to the nearest axes, without resampling.

Decoded volumes are kept as `ttdg.data.volumes.kept` says.
"""

import logging
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Num, UInt8

from ttdg.data.raster import DAMAGE
from ttdg.data.volumes.kept import check_voxels, file_key, kept_volume, volume_bytes
from ttdg.errors import UserError

SUFFIXES = (".nii.gz", ".nii")
VOXELS_BEGIN = {348: (108, "f"), 540: (168, "q")}  # size of a header → place and format of the voxels' offset
LONGEST_HEADER = 544  # bytes, with the mark of extensions
LONGEST_EXTENSION = 1 << 26  # bytes
DEFLATE = 1032  # no byte of a compressed file becomes more bytes than this
AXES = "LPS"  # voxel axes x, y, z point to the patient's left, back and head
UNITS = {1: 1000.0, 3: 0.001}  # codes of metres and micrometres → millimetres, as which any other is read
UNIT_OF_LENGTH = 7  # bits of `xyzt_units` that hold the code; the others are the unit of time
OBLIQUE = 0.01  # largest cosine between two axes that count as orthogonal
WITHOUT_NUMBERS = {"V": "colours", "c": "complex numbers"}  # kinds of data types that cannot be read


@dataclass(frozen=True)
class Geometry:
    """Shape and position of a volume after it was turned; all axes in the order z, y, x."""

    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]  # millimetres
    affine: Float[np.ndarray, "4 4"]  # of the file

    @property
    def orthogonal(self) -> bool:
        """False for sheared axes, such as those of a tilted gantry, along which no distance can be measured."""
        unit = self.affine[:3, :3] / np.linalg.norm(self.affine[:3, :3], axis=0)
        return bool(np.abs(unit.T @ unit - np.eye(3)).max() < OBLIQUE)


def is_volume(path: Path) -> bool:
    """Return True if the name of the file is that of a NIfTI file."""
    return path.name.lower().endswith(SUFFIXES)


def volume_stem(path: Path) -> str:
    """Return the file name without `.nii` or `.nii.gz`."""
    suffix = next(suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix))
    return path.name[: -len(suffix)]


def read_geometry(path: Path) -> Geometry:
    """Return the geometry of a volume, from the header alone."""
    file = open_volume(path)
    return geometry_of(file.shape[:3], file.affine, UNITS.get(unit_of_length(file.header), 1.0))


def read_volume(path: Path) -> Float[np.ndarray, "d h w"]:
    """Return the values of a volume, turned to axial slices."""
    file = open_volume(path)
    try:
        values = np.asarray(file.dataobj, np.float32).reshape(file.shape[:3])
    except DAMAGE as error:
        raise UserError(f"{path} is truncated or damaged ({error}); copy or export it again") from None
    return to_axial(values, file.affine)


def image_slice(path: Path, number: int, *, clip: bool) -> UInt8[np.ndarray, "h w 3"]:
    """Return a slice in 8-bit RGB. The range of the volume becomes 0…255, or with `clip` its 5–95 %."""
    grey = kept_volume(
        "clipped" if clip else "whole",
        file_key(path),
        lambda: volume_bytes(read_volume(path), path, clip=clip),
    )[number]
    return np.stack([grey, grey, grey], axis=-1)


def mask_slice(path: Path, number: int, image: Callable[[], Geometry], name: str) -> UInt8[np.ndarray, "h w"]:
    """Return the raw values of a slice of a mask, which must have the geometry of its image `name`."""

    def load() -> UInt8[np.ndarray, "d h w"]:
        mine, other = read_geometry(path), image()
        if mine.shape != other.shape or not np.allclose(axial_affine(mine), axial_affine(other), atol=1e-2):
            raise UserError(
                f"{path} has another shape or affine than its image {name}; draw the mask on this image, or "
                "resample one of them"
            )
        values = read_volume(path)
        if not np.isin(values, np.arange(256)).all():
            raise UserError(f"{path} is a mask with values other than 0…255; save labels as small integers")
        return values.astype(np.uint8)

    return kept_volume("mask", file_key(path), load)[number]


def to_axial(values: Num[np.ndarray, "x y z"], affine: Float[np.ndarray, "4 4"]) -> Num[np.ndarray, "d h w"]:
    """Turn a volume so that its slices are axial."""
    from nibabel import orientations

    return np.ascontiguousarray(orientations.apply_orientation(values, _turn(affine)).transpose(2, 1, 0))


def geometry_of(shape: tuple[int, int, int], affine: Float[np.ndarray, "4 4"], unit: float = 1.0) -> Geometry:
    """Return the geometry after turning of a volume with this shape (x, y, z) and affine; `unit` is in millimetres."""
    sides, spacing = np.empty(3, int), np.empty(3)
    for axis, (place, _) in enumerate(_turn(affine).astype(int)):
        sides[place], spacing[place] = shape[axis], unit * np.linalg.norm(affine[:3, axis])
    (x, y, z), (width, height, depth) = spacing.tolist(), sides.tolist()
    return Geometry((depth, height, width), (z, y, x), affine)


def axial_affine(geometry: Geometry) -> Float[np.ndarray, "4 4"]:
    """Return the affine of the turned volume, whatever the order of the stored voxels."""
    from nibabel import orientations

    turn = _turn(geometry.affine)
    shape = [geometry.shape[2 - int(place)] for place, _ in turn]
    return geometry.affine @ orientations.inv_ornt_aff(turn, shape)


def _turn(affine: Float[np.ndarray, "4 4"]) -> Float[np.ndarray, "3 2"]:
    from nibabel import orientations

    return orientations.ornt_transform(
        orientations.io_orientation(affine), orientations.axcodes2ornt(tuple(AXES))
    )


def unit_of_length(header: Any) -> int:
    """Return the code of the unit of a header, a key of `UNITS` or another one."""
    return int(header["xyzt_units"]) & UNIT_OF_LENGTH if "xyzt_units" in header else 0


def open_volume(path: Path) -> Any:
    """Open a file without reading its voxels; one that is no volume of numbers raises `UserError`."""
    import nibabel
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # it repeats what is said below
    try:
        _check_extensions(path)
        file: Any = nibabel.load(path)
        affine = file.affine
    except (ImageFileError, HeaderDataError, *DAMAGE) as error:
        raise UserError(f"{path} cannot be read as NIfTI ({error}); copy or export it again") from None
    if len(file.shape) < 3 or any(side != 1 for side in file.shape[3:]):
        raise UserError(f"{path} has the shape {file.shape} instead of three axes; save one volume in a file")
    if min(file.shape[:3]) < 1:
        raise UserError(f"{path} claims to hold no voxels; copy or export it again")
    if (kind := file.get_data_dtype().kind) in WITHOUT_NUMBERS:
        raise UserError(
            f"{path} holds {WITHOUT_NUMBERS[kind]} instead of one number for each voxel; save one channel of them, or "
            "their magnitude"
        )
    check_voxels(math.prod(file.shape[:3]), path)
    size = math.prod(file.shape[:3]) * file.get_data_dtype().itemsize
    if size > _most_bytes(path):
        raise UserError(
            f"{path} is truncated or damaged (its header claims {size:,} bytes of voxels, more than the file holds); "
            "copy or export it again"
        )
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine[:3, :3]) < 3:
        raise UserError(f"{path} has an affine without volume; export it again with its geometry")
    return file


def _most_bytes(path: Path) -> int:
    """Return how many bytes the file can hold at most, after it is unpacked."""
    return path.stat().st_size * (DEFLATE if _is_packed(path) else 1)


def _is_packed(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _check_extensions(path: Path) -> None:
    """Refuse a header extension of an impossible size, as nibabel allocates what it claims before it reads."""
    import gzip

    with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        start = file.read(LONGEST_HEADER)
        for header, (place, form) in VOXELS_BEGIN.items():
            for order in "<>":
                if len(start) < LONGEST_HEADER or struct.unpack(f"{order}i", start[:4]) != (header,):
                    continue
                (end,) = struct.unpack_from(f"{order}{form}", start, place)
                at = header + 4
                while start[header] and end - at >= 16:
                    file.seek(at)
                    if len(sizes := file.read(4)) < 4:
                        return
                    (size,) = struct.unpack(f"{order}i", sizes)
                    if not 16 <= size <= LONGEST_EXTENSION:
                        raise UserError(
                            f"{path} is truncated or damaged (an extension of its header claims {size:,} bytes); copy "
                            "or export it again"
                        )
                    at += size
