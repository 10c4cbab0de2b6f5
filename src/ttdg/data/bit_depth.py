"""Pictures of more than 8 bits a channel, brought to 8.

A 16-bit (or float) file has no agreed white: it may hold 10, 12 or 16 bits of signal. So its values are
stretched per image, darkest to 0 and brightest to 255, all channels together.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from ttdg.errors import UserError

GREY_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # Pillow's
BITS, PHOTOMETRIC, ORIENTATION, PLANAR = 258, 262, 274, 284  # TIFF tags
WHITE_IS_ZERO, SEPARATE_PLANES = 0, 2


def has_high_bit_depth(picture: ImageFile) -> bool:
    """To be asked before the pixels are loaded: Pillow then forgets what the file held."""
    sixteen = any(";16" in str(tile.args) for tile in picture.tile)
    return picture.mode in GREY_MODES or sixteen or max(_tag(picture, BITS, (8,))) > 8


def read_high_bit_depth(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    if picture.mode in GREY_MODES:
        grey = stretch_to_bytes(np.asarray(picture), path)
        if _tag(picture, PHOTOMETRIC, 1) == WHITE_IS_ZERO:
            grey = 255 - grey  # Pillow sees to this in 8 bits only
        return np.stack([grey, grey, grey], axis=-1)
    if isinstance(picture, TiffImageFile) and (colour := _tifffile_colour(path)) is not None:
        return colour
    return stretch_to_bytes(_high_bytes(picture, path), path)


def stretch_to_bytes(values: Num[np.ndarray, "*shape"], path: Path) -> UInt8[np.ndarray, "*shape"]:
    values = values.astype(np.float64)
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise UserError(f"{path} holds NaN or infinity where pixels should be; export it as 8 or 16 bit")
    return np.rint((values - low) * (255 / (high - low or 1))).astype(np.uint8)


def _high_bytes(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """All that Pillow keeps of 16-bit colour; refused where too few steps of brightness would be left."""
    colour = np.asarray(picture.convert("RGB"))
    if _tag(picture, PLANAR, 1) == SEPARATE_PLANES or 0 < np.ptp(colour) < 64:
        raise UserError(f"{path} holds 16-bit colour in a form that cannot be read finely; save it as 8 bit")
    return colour


def _tifffile_colour(path: Path) -> UInt8[np.ndarray, "h w 3"] | None:
    """All 16 bits, upright; None for a compression that tifffile does not know by itself."""
    import tifffile

    try:
        with tifffile.TiffFile(path) as file:
            page = file.pages[0]
            colour = np.moveaxis(page.asarray(), page.axes.index("S"), -1)[..., :3]
            turn = page.tags.get(ORIENTATION)
    except ValueError:
        return None
    picture = Image.fromarray(stretch_to_bytes(colour, path))
    picture.getexif()[ORIENTATION] = 1 if turn is None else int(turn.value)
    ImageOps.exif_transpose(picture, in_place=True)
    return np.asarray(picture)


def _tag(picture: ImageFile, tag: int, default: Any) -> Any:
    return picture.tag_v2.get(tag, default) if isinstance(picture, TiffImageFile) else default
