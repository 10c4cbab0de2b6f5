"""Files to arrays. The table is keyed by suffix, so that a further format is one further line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ttdg.data import raster
from ttdg.errors import UserError


@dataclass(frozen=True)
class Reader:
    image: Callable[[Path], UInt8[np.ndarray, "h w 3"]]
    mask: Callable[[Path], UInt8[np.ndarray, "h w"]]


RASTER = Reader(raster.read_raster_image, raster.read_raster_mask)

READERS: dict[str, Reader] = {
    ".png": RASTER,
    ".jpg": RASTER,
    ".jpeg": RASTER,
    ".bmp": RASTER,
    ".tif": RASTER,
    ".tiff": RASTER,
}


def readable(path: Path) -> bool:
    return path.suffix.lower() in READERS


def read_image(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    """The picture as a viewer shows it, upright, in 8-bit RGB. The array may be read-only."""
    return _reader(path).image(path)


def read_mask(path: Path) -> UInt8[np.ndarray, "h w"]:
    """The raw grey values of a mask; a benchmark's `encode` gives them their meaning."""
    return _reader(path).mask(path)


def _reader(path: Path) -> Reader:
    if not readable(path):
        raise UserError(f"{path} is of no known type; convert it to one of {', '.join(READERS)}")
    return READERS[path.suffix.lower()]
