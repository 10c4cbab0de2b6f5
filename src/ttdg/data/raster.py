"""PNG, JPEG, BMP and TIFF through Pillow.

An image is read as a viewer shows it, turned upright. Alpha says how to draw a picture, not what the camera
saw: it is dropped. 16 bits become 8 by stretching (deep.py).

A mask is read as raw values: 1-bit (and 2- and 4-bit) grey becomes 0…255 as on a screen; a palette of greys
gives its greys, a palette with colours its indices, which is how annotation tools store labels; a 16-bit mask
must stay within 0…255.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from ttdg.data.bit_depth import GREY_MODES, has_high_bit_depth, read_high_bit_depth
from ttdg.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "TIFF")  # by content, whatever the suffix says
LOSSY = ("JPEG", "MPO")  # MPO is a camera's JPEG with a second view behind the first

# Pillow checks a file as it goes, so damage can surface as almost anything.
DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError,
    MemoryError, RuntimeError, struct.error, zlib.error,
)  # fmt: skip


def read_raster_image(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    with _opened(path) as picture:
        deep = has_high_bit_depth(picture)
        ImageOps.exif_transpose(picture, in_place=True)  # loads it, too
        return read_high_bit_depth(picture, path) if deep else np.asarray(picture.convert("RGB"))


def read_raster_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    with _opened(path) as picture:
        deep = has_high_bit_depth(picture)
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
def _opened(path: Path) -> Iterator[ImageFile]:
    """A picture whose header is sound, not yet decoded; whatever goes wrong inside is said in words."""
    try:
        # By name, Pillow would map the pixels of a plain TIFF and mistake the sides of one to be turned.
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as picture:
            _refuse_by_header(picture, path)
            yield picture
    except UserError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UserError(_too_large(path)) from None
    except DAMAGE as error:
        raise UserError(_unreadable(path, error)) from None


def _refuse_by_header(picture: ImageFile, path: Path) -> None:
    """Before memory is taken for the pixels."""
    if picture.width * picture.height > (Image.MAX_IMAGE_PIXELS or float("inf")):
        raise UserError(_too_large(path))
    if picture.format != "MPO" and (pages := getattr(picture, "n_frames", 1)) > 1:
        raise UserError(f"{path} holds {pages} pages, not one picture; save each page as a file of its own")


def _byte_values(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w"]:
    values = np.asarray(picture)
    if picture.mode not in GREY_MODES or not np.isin(values, np.arange(256)).all():
        raise UserError(f"{path} is a mask with more than 8 bits in use; save it as 8-bit grey")
    return values.astype(np.uint8)


def _grey_of_colour(picture: ImageFile, path: Path) -> UInt8[np.ndarray, "h w"]:
    """Colour is accepted where it is grey: equal channels, or nearly equal ones after JPEG."""
    colour = picture.convert("RGB")
    if np.ptp(np.asarray(colour), axis=-1).max() > (8 if picture.format in LOSSY else 0):
        raise UserError(f"{path} is a coloured mask; save it as grey, or give it a palette of labels")
    return np.asarray(colour.convert("L"))


def _too_large(path: Path) -> str:
    limit = (Image.MAX_IMAGE_PIXELS or 0) / 1e6
    return (
        f"{path} claims more than {limit:.0f} megapixels, as a decompression bomb does; "
        "scale it down or take it out (PIL.Image.MAX_IMAGE_PIXELS sets the limit)"
    )


def _unreadable(path: Path, error: BaseException) -> str:
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
        return f"cannot open {path} ({error.strerror}); check the name and your rights"
    if path.stat().st_size == 0:
        return f"{path} is empty (0 bytes); copy or export it again"
    if isinstance(error, UnidentifiedImageError):
        return f"{path} is no PNG, JPEG, BMP or TIFF that can be read; convert it, or take it out"
    return f"{path} is truncated or damaged ({error}); copy or export it again"
