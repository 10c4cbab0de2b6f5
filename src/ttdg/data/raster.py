"""Reading PNG, JPEG, BMP, TIFF and WebP files with Pillow.

Images are read as a viewer shows them, turned upright. The alpha channel is dropped: it says how to draw the
image, not what the camera recorded. Images of more than 8 bits are stretched to 8 (`bit_depth.py`).

Masks are read as raw grey values:

- Grey of 1, 2 or 4 bits is scaled to 0…255, as on a screen.
- A palette of greys gives its greys.
- A palette with colours gives the indices, because annotation tools store labels that way.
- A 16-bit mask must stay within 0…255.
"""

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from ttdg.data.bit_depth import (
    GREY_MODES,
    ORIENTATION,
    has_high_bit_depth,
    read_high_bit_depth,
    read_unusual_tiff,
)
from ttdg.data.coverage.decoded import LOSSY, missing_pixels
from ttdg.data.coverage.jpeg import missing_in_jpeg
from ttdg.data.coverage.tiff import MOST_PAGES, missing_in_tiff, page_count
from ttdg.data.threads import Budget
from ttdg.errors import UserError
from ttdg.files import BoundedFile

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")  # detected by content, not by suffix
DECODING = Budget(
    33_000_000
)  # pixels that threads decode at the same time; one larger image is decoded alone
BLOCK = 64 * 1024 * 1024  # bytes of a part of a decoded image
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange height and width

# Pillow validates a file while decoding it, so a damaged file can raise almost any exception.
DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError,
    MemoryError, RuntimeError, struct.error, zlib.error,
)  # fmt: skip


class UnidentifiedError(UserError):
    """The file is of no format that Pillow reads."""


def read_raster_image(file: BinaryIO, path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Return the image in 8-bit RGB, turned upright."""
    return read_reduced_image(file, path, None)[0]


def read_reduced_image(
    file: BinaryIO, path: Path, side: int | None
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[int, int]]:
    """Return the image in 8-bit RGB, turned upright, and its full (height, width).

    Args:
        file: The open file.
        path: Its path, for error messages.
        side: An image with more than four squares of this side is scaled down by an integer while it is decoded, and
            both its sides stay at least this long. None decodes every image at its full size.
    """
    try:
        with _decoding(file, path) as picture, DECODING.hold(picture.width * picture.height if side else 0):
            if has_high_bit_depth(picture):
                _check_strips(picture, path)
                if not isinstance(picture, TiffImageFile):
                    _decode(picture, file, path)
                return read_high_bit_depth(picture, file, path, side)
            if side is not None and picture.width * picture.height > 4 * side * side:
                return _decode_reduced(picture, file, path, side)
            _decode(picture, file, path)
            ImageOps.exif_transpose(picture, in_place=True)
            image = np.asarray(picture.convert("RGB"))
            return image, (image.shape[0], image.shape[1])
    except UnidentifiedError as unknown:
        try:
            with DECODING.hold(DECODING.units if side else 0):
                deep = read_unusual_tiff(file, path, Image.MAX_IMAGE_PIXELS, side)
        except DAMAGE as error:
            raise error if isinstance(error, UserError) else UserError(_damaged(path, error)) from None
        if deep is None:
            raise UserError(str(unknown)) from None
        return deep


@contextmanager
def pixel_limit(pixels: int) -> Iterator[None]:
    """Refuse images of more than `pixels` pixels inside the block. The limit holds for the whole process."""
    warnings.filterwarnings(
        "ignore", category=Image.DecompressionBombWarning
    )  # such images are refused in words
    # Blocks of this size go back to the system when an image is closed; smaller ones would stay with each thread.
    Image.core.set_block_size(BLOCK)  # type: ignore[attr-defined]
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, pixels
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _decode_reduced(
    picture: ImageFile, file: BinaryIO, path: Path, side: int
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[int, int]]:
    """Return a picture of 8 bits, upright and scaled down, and its full size. A JPEG is decoded at a smaller scale."""
    full = picture.size
    drafted = picture.draft(None, (side, side)) is not None
    _decode(picture, file, path, side if drafted else None)
    full = full if drafted else picture.size  # Pillow turns a TIFF upright while it loads the pixels
    orientation = picture.getexif().get(ORIENTATION, 1)
    shrunk = picture if picture.mode == "RGB" else picture.convert("RGB")
    shrunk = shrunk.reduce(max(1, min(shrunk.size) // side))
    shrunk.getexif()[ORIENTATION] = orientation
    ImageOps.exif_transpose(shrunk, in_place=True)
    width, height = full[::-1] if orientation in SIDEWAYS else full
    return np.asarray(shrunk), (height, width)


def read_raster_mask(file: BinaryIO, path: Path) -> UInt8[np.ndarray, "h w"]:
    """Return the raw grey values of a mask, turned upright like its image."""
    with _decoding(file, path) as picture:
        deep = has_high_bit_depth(picture)
        _decode(picture, file, path)
        ImageOps.exif_transpose(picture, in_place=True)
        if deep:
            return _byte_values(picture, path)
        if picture.mode == "P":
            coloured = np.ptp(np.array(picture.getpalette()).reshape(-1, 3), axis=1).any()
            return np.asarray(picture if coloured else picture.convert("L"))
        if picture.mode in ("1", "L", "LA"):
            return np.asarray(picture.convert("L"))
        return _grey_of_colour(picture, path)


@contextmanager
def _decoding(file: BinaryIO, path: Path) -> Iterator[ImageFile]:
    """Yield a picture with a valid header, not yet decoded; errors inside the block become `UserError`."""
    try:
        # Pillow must not get the path: it would memory-map an uncompressed TIFF and swap its sides when rotating.
        with Image.open(BoundedFile(file), formats=FORMATS) as picture:
            _check_header(picture, path)
            yield picture
    except UserError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UserError(_too_large(path)) from None
    except DAMAGE as error:
        kind = UnidentifiedError if isinstance(error, UnidentifiedImageError) else UserError
        raise kind(_damaged(path, error)) from None


def _check_header(picture: ImageFile, path: Path) -> None:
    """Refuse pictures that are too large or have several pages, before memory is allocated for the pixels."""
    if picture.width * picture.height > (Image.MAX_IMAGE_PIXELS or float("inf")):
        raise UserError(_too_large(path))
    if picture.format != "MPO" and (pages := _pages(picture)) > 1:
        count = f"at least {pages}" if pages == MOST_PAGES else pages
        raise UserError(f"{path} holds {count} pages instead of one; save each page as a separate file")


def _pages(picture: ImageFile) -> int:
    return page_count(picture) if isinstance(picture, TiffImageFile) else getattr(picture, "n_frames", 1)


def _check_strips(picture: ImageFile, path: Path) -> None:
    """Refuse a TIFF whose strips or tiles do not cover the frame, before it is decoded."""
    if isinstance(picture, TiffImageFile) and (reason := missing_in_tiff(picture)) is not None:
        raise UserError(_incomplete(path, reason))


def _decode(picture: ImageFile, file: BinaryIO, path: Path, side: int | None = None) -> None:
    """Decode the pixels; refuse a file that does not hold all of them, as Pillow does not say so.

    A JPEG may be decoded at a smaller scale; `side` is then that of its draft.
    """
    _check_strips(picture, path)
    picture.load()
    reason = missing_pixels(picture, file) if side is None else missing_in_jpeg(picture, file, side)
    if reason is not None:
        raise UserError(_incomplete(path, reason))


def _byte_values(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w"]:
    values = np.asarray(picture)
    if picture.mode not in GREY_MODES or not np.isin(values, np.arange(256)).all():
        raise UserError(f"{path} is a mask with more than 8 bits in use; save it as 8-bit grey")
    return values.astype(np.uint8)


def _grey_of_colour(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w"]:
    """Accept colour only with equal channels, or nearly equal ones after JPEG compression."""
    colour = picture.convert("RGB")
    if np.ptp(np.asarray(colour), axis=-1).max() > (8 if picture.format in LOSSY else 0):
        raise UserError(f"{path} is a coloured mask; save it as grey, or give it a palette of labels")
    return np.asarray(colour.convert("L"))


def _too_large(path: Path) -> str:
    limit = (Image.MAX_IMAGE_PIXELS or 0) / 1e6
    return (
        f"{path} claims more than {limit:.0f} megapixels, so that reading it could fill the memory; scale the image "
        "down, or raise the limit of pixels if the file comes from a source that you trust"
    )


def _incomplete(path: Path, reason: object) -> str:
    return f"{path} is truncated or damaged ({reason}); copy or export it again"


def _damaged(path: Path, error: BaseException) -> str:
    if path.stat().st_size == 0:
        return f"{path} is empty (0 bytes); copy or export it again"
    if isinstance(error, UnidentifiedImageError):
        return f"{path} is no PNG, JPEG, BMP, TIFF or WebP that can be read; convert it, or remove it"
    return _incomplete(path, error)
