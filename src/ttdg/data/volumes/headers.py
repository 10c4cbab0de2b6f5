"""What readers of volumes with a text header share: numbers, data in another file, and the geometry."""

import math
from collections.abc import Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from ttdg.data.volumes.kept import check_voxels
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


def sides_of(header: dict[str, str], name: str, path: Path) -> list[int]:
    """Return the sides of the volume; refuse other numbers of axes, empty volumes, and those of too many voxels."""
    shape = [int(side) for side in numbers(header, name, path)]
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"{path} has the sides {shape} instead of three axes; save one volume in a file")
    check_voxels(math.prod(shape), path)
    return shape


def at_most(packed: BufferedIOBase, size: int) -> bytes:
    """Return the content of a compressed file, or one byte more than `size` if there is more."""
    with packed:
        return packed.read(size + 1)


def values_of(
    data: bytes, dtype: np.dtype[Any], shape: Sequence[int], path: Path
) -> Shaped[np.ndarray, "x y z"]:
    """Return the voxels, of which x runs fastest in the data; refuse data of another length."""
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        found = f"more than {wanted:,}" if len(data) > wanted else f"{len(data):,}"
        raise UserError(
            f"{path} has {found} bytes of data instead of {wanted:,} for {' × '.join(map(str, shape))} voxels; "
            "copy or export it again"
        )
    return np.frombuffer(data, dtype).reshape(tuple(shape), order="F")


def lps_image(
    values: Shaped[np.ndarray, "x y z"], axes: Float[np.ndarray, "3 3"], origin: Sequence[float], path: Path
) -> Any:
    """Return a NIfTI image.

    Args:
        values: The voxels.
        axes: Row i is the step in millimetres from a voxel to the next along axis i, to the left, back and head.
        origin: Position of the first voxel, to the left, back and head.
        path: The file, for error messages.
    """
    import nibabel

    if not np.isfinite([*axes, origin]).all() or np.linalg.matrix_rank(axes) < 3:
        raise UserError(f"{path} has axes without volume; export it again with its geometry")
    affine = np.eye(4)
    affine[:3, :3] = TO_RAS @ axes.T
    affine[:3, 3] = TO_RAS @ np.array(origin)
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return nibabel.Nifti1Image(native, affine, dtype=native.dtype)
