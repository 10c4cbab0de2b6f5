"""Converting images of more than 8 bits per channel to 8 bits.

A 16-bit (or float) file does not say which value is white: it may hold 10, 12 or 16 bits of signal. Each image
is therefore stretched linearly so that its darkest value becomes 0 and its brightest 255, over all channels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image, ImageOps
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


def read_high_bit_depth(
    picture: ImageFile, file: BinaryIO, path: Path, side: int | None
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[int, int]]:
    """Return a picture in 8-bit RGB, turned upright, and its full size; `file` is the open file that it decodes.

    With `side`, a large picture is scaled down as `reduction` says.
    """
    if (
        picture.mode not in GREY_MODES
        and isinstance(picture, TiffImageFile)
        and (colour := _tifffile_colour(file, path, side)) is not None
    ):
        return colour
    ImageOps.exif_transpose(picture, in_place=True)  # also decodes the pixels
    if picture.mode in GREY_MODES:
        grey, size = _stretch_reduced(np.asarray(picture), path, side)
        if _tag(picture, PHOTOMETRIC, 1) == WHITE_IS_ZERO:
            grey = 255 - grey  # Pillow inverts these files in 8 bits only
        return np.stack([grey, grey, grey], axis=-1), size
    return _stretch_reduced(_high_bytes(picture, path), path, side)


def reduction(size: tuple[int, int], side: int | None) -> int:
    """Return the integer by which an image of more than four squares of this side is scaled down; 1 for all others."""
    return 1 if side is None or size[0] * size[1] <= 4 * side * side else max(1, min(size) // side)


def stretch_to_bytes(
    values: Num[np.ndarray, "*shape"], path: Path, limits: tuple[float, float] | None = None
) -> UInt8[np.ndarray, "*shape"]:
    """Map the smallest value to 0 and the largest to 255, linearly; a constant image becomes 0.

    With `limits`, values are first limited to them, and they become 0 and 255.
    """
    result = np.empty(values.shape, np.uint8)
    for start, strip in _stretched_strips(values, path, ROWS, limits):
        result[start : start + ROWS] = strip
    return result


def _stretched_strips(
    values: Num[np.ndarray, "*shape"], path: Path, rows: int, limits: tuple[float, float] | None = None
) -> Iterator[tuple[int, UInt8[np.ndarray, "..."]]]:
    """Yield the number of the first row and the stretched values of each strip.

    Double precision takes eight times the memory, so it is used for one strip at a time.
    """
    low, high = limits or (float(values.min()), float(values.max()))
    if not np.isfinite(high - low):
        raise UserError(f"{path} holds NaN or infinite pixel values; export it as 8 or 16 bit")
    for start in range(0, len(values), rows):
        strip = values[start : start + rows].astype(np.float64)
        if limits is not None:
            strip = np.clip(strip, low, high)
        yield start, np.rint((strip - low) * (255 / (high - low or 1))).astype(np.uint8)


def _stretch_reduced(
    values: Num[np.ndarray, "h w *c"], path: Path, side: int | None
) -> tuple[UInt8[np.ndarray, "y x *c"], tuple[int, int]]:
    """Return the stretched image, scaled down as `reduction` says, and its full size.

    A large image never exists in 8 bits at its full size.
    """
    size = values.shape[0], values.shape[1]
    if (factor := reduction(size, side)) == 1:
        return stretch_to_bytes(values, path), size
    strips = _stretched_strips(values, path, max(1, ROWS // factor) * factor)
    return np.concatenate([np.asarray(Image.fromarray(strip).reduce(factor)) for _, strip in strips]), size


def _high_bytes(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Return the high byte of each value, which is all that Pillow keeps of 16-bit colour.

    Pictures that would have fewer than 64 levels of brightness are refused.
    """
    colour = np.asarray(picture.convert("RGB"))
    if _tag(picture, PLANAR, 1) == SEPARATE_PLANES or 0 < np.ptp(colour) < 64:
        raise UserError(f"{path} holds 16-bit colour that cannot be read precisely; save it as 8 bit")
    return colour


def _tifffile_colour(
    file: BinaryIO, path: Path, side: int | None
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[int, int]] | None:
    """Return an upright image made from all 16 bits and its full size, or None if tifffile lacks the decompressor."""
    import tifffile

    file.seek(0)
    try:
        with tifffile.TiffFile(file) as tiff:
            page = tiff.pages[0]
            colour = np.moveaxis(page.asarray(), page.axes.index("S"), -1)[..., :3]
            orientation = page.tags.get(ORIENTATION)
    except ValueError:
        return None
    return _upright(*_stretch_reduced(colour, path, side), orientation)


def read_unusual_tiff(
    file: BinaryIO, path: Path, most_pixels: int | None, side: int | None
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[int, int]] | None:
    """Return the upright image of a TIFF that Pillow does not know, such as float colour, and its full size.

    None for another file. With `side`, a large picture is scaled down as `reduction` says.
    """
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
    colour, size = _stretch_reduced(colour[..., :3] if colour.shape[-1] >= 3 else colour[..., 0], path, side)
    colour = 255 - colour if white_is_zero else colour
    return _upright(colour if colour.ndim == 3 else np.stack([colour] * 3, axis=-1), size, orientation)


def _upright(
    colour: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], orientation: Any
) -> tuple[UInt8[np.ndarray, "y x 3"], tuple[int, int]]:
    """Turn an image and its full size as the TIFF tag `orientation` says; None leaves them."""
    number = 1 if orientation is None else int(orientation.value)
    upright = colour.transpose(1, 0, 2) if number in (5, 6, 7, 8) else colour
    upright = upright[:: -1 if number in (3, 4, 7, 8) else 1, :: -1 if number in (2, 3, 6, 7) else 1]
    return upright, size[::-1] if number in (5, 6, 7, 8) else size


def _tag(picture: ImageFile, tag: int, default: Any) -> Any:
    return picture.tag_v2.get(tag, default) if isinstance(picture, TiffImageFile) else default
