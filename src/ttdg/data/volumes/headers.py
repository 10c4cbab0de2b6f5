"""What readers of volumes with a text header share: numbers, data in another file, and the geometry."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from ttdg.errors import UserError

TO_RAS = np.diag(
    [-1.0, -1.0, 1.0]
)  # from axes to the left, back and head to axes to the right, front and head


def numbers(header: dict[str, str], name: str, path: Path) -> list[float]:
    """Return the numbers of an entry."""
    try:
        return [float(word) for word in header[name].split()]
    except (KeyError, ValueError):
        found = header.get(name)
        raise UserError(f"{path} has no numbers in its entry {name!r} ({found}); copy it again") from None


def data_beside(path: Path, name: str) -> bytes:
    """Return the content of the data file that a header names; it must be beside or below the header."""
    data = (path.parent / name).resolve()
    if not data.is_relative_to(path.parent.resolve()):
        raise UserError(f"{path} names the data file {name}, which is elsewhere; put it beside the header")
    try:
        return data.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} names the data file {name} ({error.strerror}); put it beside the header"
        ) from None


def number_of_voxels(shape: Sequence[int]) -> int:
    """Return the product of the sides."""
    return math.prod(shape)


def values_of(
    data: bytes, dtype: np.dtype[Any], shape: Sequence[int], path: Path
) -> Shaped[np.ndarray, "x y z"]:
    """Return the voxels, of which x runs fastest in the data; refuse data of another length."""
    wanted = number_of_voxels(shape) * dtype.itemsize
    if len(data) != wanted:
        raise UserError(
            f"{path} has {len(data):,} bytes of data instead of {wanted:,} for {' × '.join(map(str, shape))} voxels; "
            "copy or export it again"
        )
    return np.frombuffer(data, dtype).reshape(tuple(shape), order="F")


def lps_image(
    values: Shaped[np.ndarray, "x y z"], axes: Float[np.ndarray, "3 3"], origin: Sequence[float]
) -> Any:
    """Return a NIfTI image.

    Args:
        values: The voxels.
        axes: Row i is the step in millimetres from a voxel to the next along axis i, to the left, back and head.
        origin: Position of the first voxel, to the left, back and head.
    """
    import nibabel

    affine = np.eye(4)
    affine[:3, :3] = TO_RAS @ axes.T
    affine[:3, 3] = TO_RAS @ np.array(origin)
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return nibabel.Nifti1Image(native, affine, dtype=native.dtype)
