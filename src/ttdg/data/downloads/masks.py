"""Mask files of downloads as the labels of a benchmark."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from ttdg.data.downloads.description import Channel, MaskSpec
from ttdg.data.readers import read_image, read_mask
from ttdg.errors import UserError

CHANNELS: tuple[Channel, ...] = ("red", "green", "blue")
MATLAB = ".mat"
VARIABLE = "mask"  # name of the array in Matlab files


def mask_values(path: Path, channels: tuple[Channel, ...] | None) -> UInt8[np.ndarray, "h w"]:
    """Return the values of a mask in an image file or in a Matlab file."""
    if path.suffix.lower() == MATLAB:
        return _matlab_values(path)
    if channels is None:
        return read_mask(path)
    return read_image(path)[..., [CHANNELS.index(channel) for channel in channels]].max(-1)


def fitted(
    mask: UInt8[np.ndarray, "h w"], shape: tuple[int, int], tolerance: float, path: Path
) -> UInt8[np.ndarray, "h w"]:
    """Return the mask at the size of its image; refuse one whose sides differ by more than the tolerance."""
    if mask.shape == shape:
        return mask
    if any(abs(a - b) > tolerance * b for a, b in zip(mask.shape, shape, strict=True)):
        raise UserError(
            f"{path} has {mask.shape[1]} × {mask.shape[0]} pixels and its image {shape[1]} × {shape[0]}; "
            "download both again"
        )
    return np.asarray(Image.fromarray(mask).resize(shape[::-1], Image.Resampling.NEAREST))


def painted(
    masks: Sequence[tuple[MaskSpec, Shaped[np.ndarray, "*s"], Path]], labels: tuple[str, ...]
) -> UInt8[np.ndarray, "*s"]:
    """Return label indices: masks painted over the background, one after the other."""
    result = np.zeros(masks[0][1].shape, np.uint8)
    for spec, values, path in masks:
        if isinstance(spec.paint, str):
            result[values > spec.above] = labels.index(spec.paint)
            continue
        if unknown := set(np.unique(values).tolist()) - spec.paint.keys():
            known = ", ".join(f"{value} = {label}" for value, label in spec.paint.items())
            shown = ", ".join(f"{value:g}" for value in sorted(unknown)[:8])
            raise UserError(f"{path} holds unknown values: {shown} (known: {known}); correct the mask")
        for value, label in spec.paint.items():
            result[values == value] = labels.index(label)
    return result


def _matlab_values(path: Path) -> UInt8[np.ndarray, "h w"]:
    from scipy.io import loadmat

    try:
        values = np.asarray(loadmat(path, variable_names=[VARIABLE])[VARIABLE])
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise UserError(
            f"{path} has no array {VARIABLE!r} that can be read ({error}); copy it again"
        ) from None
    if values.ndim != 2 or not np.isin(values, np.arange(256)).all():
        raise UserError(f"{path} is no mask with values 0…255 in two axes; copy it again")
    return values.astype(np.uint8)
