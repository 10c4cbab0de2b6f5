"""Converting images of more than 8 bits per channel to 8 bits.

A 16-bit (or float) file does not say which value is white: it may hold 10, 12 or 16 bits of signal. Each image
is therefore stretched linearly so that its darkest value becomes 0 and its brightest 255, over all channels.
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Num, UInt8
from PIL import ImageOps
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from ttdg.errors import UserError

GREY_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # of Pillow
BITS, PHOTOMETRIC, ORIENTATION, PLANAR = 258, 262, 274, 284  # TIFF tags
WHITE_IS_ZERO, SEPARATE_PLANES = 0, 2
ROWS = 64  # of an image that are converted at once
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MOST_BYTES = 8  # decoded bytes for each pixel of the pixel limit


def has_high_bit_depth(picture: ImageFile) -> bool:
    """Return True if the file holds more than 8 bits per channel. Call it before Pillow decodes the pixels."""
    sixteen = any(";16" in str(tile.args) for tile in picture.tile)
    return picture.mode in GREY_MODES or sixteen or max(_tag(picture, BITS, (8,))) > 8


def read_high_bit_depth(picture: ImageFile, file: BinaryIO, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Return a picture in 8-bit RGB, turned upright; `file` is the open file that it decodes."""
    if (
        picture.mode not in GREY_MODES
        and isinstance(picture, TiffImageFile)
        and (colour := _tifffile_colour(file, path)) is not None
    ):
        return colour
    ImageOps.exif_transpose(picture, in_place=True)  # also decodes the pixels
    if picture.mode in GREY_MODES:
        grey = stretch_to_bytes(np.asarray(picture), path)
        if _tag(picture, PHOTOMETRIC, 1) == WHITE_IS_ZERO:
            grey = 255 - grey  # Pillow inverts these files in 8 bits only
        return np.stack([grey, grey, grey], axis=-1)
    return stretch_to_bytes(_high_bytes(picture, path), path)


def stretch_to_bytes(
    values: Num[np.ndarray, "*shape"], path: Path, limits: tuple[float, float] | None = None
) -> UInt8[np.ndarray, "*shape"]:
    """Map the smallest value to 0 and the largest to 255, linearly; a constant image becomes 0.

    With `limits`, values are first limited to them, and they become 0 and 255.
    """
    low, high = limits or (float(values.min()), float(values.max()))
    if not np.isfinite(high - low):
        raise UserError(f"{path} holds NaN or infinite pixel values; export it as 8 or 16 bit")
    result = np.empty(values.shape, np.uint8)
    for start in range(
        0, len(values), ROWS
    ):  # in strips, because double precision takes eight times the memory
        strip = values[start : start + ROWS].astype(np.float64)
        if limits is not None:
            strip = np.clip(strip, low, high)
        result[start : start + ROWS] = np.rint((strip - low) * (255 / (high - low or 1)))
    return result


def _high_bytes(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Return the high byte of each value, which is all that Pillow keeps of 16-bit colour.

    Pictures that would have fewer than 64 levels of brightness are refused.
    """
    colour = np.asarray(picture.convert("RGB"))
    if _tag(picture, PLANAR, 1) == SEPARATE_PLANES or 0 < np.ptp(colour) < 64:
        raise UserError(f"{path} holds 16-bit colour that cannot be read precisely; save it as 8 bit")
    return colour


def _tifffile_colour(file: BinaryIO, path: Path) -> UInt8[np.ndarray, "h w 3"] | None:
    """Return an upright image made from all 16 bits, or None if tifffile lacks the decompressor."""
    import tifffile

    file.seek(0)
    try:
        with tifffile.TiffFile(file) as tiff:
            page = tiff.pages[0]
            colour = np.moveaxis(page.asarray(), page.axes.index("S"), -1)[..., :3]
            orientation = page.tags.get(ORIENTATION)
    except ValueError:
        return None
    return _upright(stretch_to_bytes(colour, path), orientation)


def read_unusual_tiff(
    file: BinaryIO, path: Path, most_pixels: int | None
) -> UInt8[np.ndarray, "h w 3"] | None:
    """Return the upright image of a TIFF that Pillow does not know, such as float colour; None for another file."""
    import logging

    import tifffile

    file.seek(0)
    if file.read(4) not in TIFF_STARTS:
        return None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # its messages quote tags of the file
    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        page = tiff.pages[0]
        if len(tiff.pages) > 1:
            raise UserError(f"{path} holds several pages instead of one; save each page as a separate file")
        pixels = page.imagewidth * page.imagelength
        if most_pixels is not None and max(pixels, page.nbytes / MOST_BYTES) > most_pixels:
            raise UserError(
                f"{path} claims {pixels / 1e6:.0f} megapixels of {page.nbytes / max(1, pixels):.0f} bytes, so that "
                "reading it could fill the memory; scale the image down, save it with fewer bits, or raise the "
                "limit of pixels"
            )
        if page.dtype is None or page.dtype.kind not in "fiu" or set(page.axes) - set("YXS"):
            return None
        values = page.asarray()
        colour = np.moveaxis(values, page.axes.index("S"), -1) if "S" in page.axes else values[..., None]
        orientation, white_is_zero = page.tags.get(ORIENTATION), page.photometric == WHITE_IS_ZERO
    colour = stretch_to_bytes(colour[..., :3] if colour.shape[-1] >= 3 else colour[..., :1], path)
    colour = 255 - colour if white_is_zero else colour
    return _upright(np.broadcast_to(colour, (*colour.shape[:2], 3)), orientation)


def _upright(colour: UInt8[np.ndarray, "h w 3"], orientation: Any) -> UInt8[np.ndarray, "height width 3"]:
    """Turn an image as the TIFF tag `orientation` says; None leaves it."""
    number = 1 if orientation is None else int(orientation.value)
    upright = colour.transpose(1, 0, 2) if number in (5, 6, 7, 8) else colour
    return upright[:: -1 if number in (3, 4, 7, 8) else 1, :: -1 if number in (2, 3, 6, 7) else 1]


def _tag(picture: ImageFile, tag: int, default: Any) -> Any:
    return picture.tag_v2.get(tag, default) if isinstance(picture, TiffImageFile) else default
