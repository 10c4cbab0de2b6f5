"""Reading image and mask files into arrays.

`READERS` maps a file suffix to the functions that decode it. To support another format, add a line there.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

from ttdg.data import raster
from ttdg.data.dicom import read_dicom_image, read_dicom_mask
from ttdg.errors import UserError


@dataclass(frozen=True)
class Reader:
    """The functions that decode one file format.

    Both take a file, opened in binary mode and positioned at its start, and its path for error messages.
    """

    image: Callable[[BinaryIO, Path], UInt8[np.ndarray, "h w 3"]]
    mask: Callable[[BinaryIO, Path], UInt8[np.ndarray, "h w"]]


RASTER = Reader(raster.read_raster_image, raster.read_raster_mask)

READERS: dict[str, Reader] = {
    ".png": RASTER,
    ".jpg": RASTER,
    ".jpeg": RASTER,
    ".bmp": RASTER,
    ".tif": RASTER,
    ".tiff": RASTER,
    ".webp": RASTER,
    ".dcm": Reader(read_dicom_image, read_dicom_mask),
}


def readable(path: Path) -> bool:
    """Return True if `READERS` has the suffix of this file."""
    return path.suffix.lower() in READERS


def read_image(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """Return the image in 8-bit RGB, turned upright as a viewer shows it. The array may be read-only."""
    with _opened(path) as (reader, file):
        return reader.image(file, path)


def read_image_and_digest(path: Path) -> tuple[UInt8[np.ndarray, "h w 3"], str]:
    """Return `read_image(path)` and the SHA-256 digest of the file in hexadecimal; open the file once."""
    with _opened(path) as (reader, file):
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        return reader.image(file, path), digest


def read_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    """Return the raw grey values of a mask. `Benchmark.encode` converts them to labels."""
    with _opened(path) as (reader, file):
        return reader.mask(file, path)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Reader, BufferedReader]]:
    if not readable(path):
        raise UserError(f"{path} is of no known type; convert it to one of {', '.join(READERS)}")
    try:
        with path.open("rb") as file:
            yield READERS[path.suffix.lower()], file
    except OSError as error:
        raise UserError(
            f"cannot open {path} ({error.strerror}); check its name and your permissions"
        ) from None
