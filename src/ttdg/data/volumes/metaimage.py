"""Reading MetaImage files: a text header `.mhd` beside its `.raw` data, or both in one `.mha` file."""

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ttdg.data.volumes.headers import data_beside, lps_image, numbers, sides_of, values_of
from ttdg.errors import UserError

TYPES = {
    "MET_CHAR": "i1", "MET_UCHAR": "u1", "MET_SHORT": "i2", "MET_USHORT": "u2", "MET_INT": "i4", "MET_UINT": "u4",
    "MET_LONG": "i4", "MET_ULONG": "u4", "MET_FLOAT": "f4", "MET_DOUBLE": "f8",
}  # fmt: skip
ORIGINS = ("Offset", "Position", "Origin")  # three names of the same entry
DIRECTIONS = ("TransformMatrix", "Rotation", "Orientation")
LOCAL = "LOCAL"  # value of the last entry of a header if the data follow in the same file
LONGEST_HEADER = 1 << 16


def read_metaimage(path: Path) -> Any:
    """Return the volume as a NIfTI image; its axes and spacing are those of the file."""
    content = path.read_bytes()
    header, start = _header(content, path)
    shape = sides_of(header, "DimSize", path)
    if header.get("ElementNumberOfChannels", "1") != "1":
        raise UserError(f"{path} is no volume of one channel; save one volume in a file")
    if (kind := header.get("ElementType", "")) not in TYPES:
        raise UserError(f"{path} has the unknown ElementType {kind!r}; save it as one of {', '.join(TYPES)}")
    big = _first(header, ("ElementByteOrderMSB", "BinaryDataByteOrderMSB"), "False").lower() == "true"
    dtype = np.dtype(TYPES[kind]).newbyteorder(">" if big else "<")
    file = header["ElementDataFile"]
    data = content[start:] if file == LOCAL else data_beside(path, file)
    skip, size = int(header.get("HeaderSize", "0")), math.prod(shape) * dtype.itemsize
    if header.get("CompressedData", "False").lower() == "true":
        data = zlib.decompressobj().decompress(data, max(skip, 0) + size + 1)
    if skip == -1:  # the data are at the end of the file
        skip = len(data) - size
    values = values_of(data[max(skip, 0) :], dtype, shape, path)
    spacing = np.array(numbers(header, "ElementSpacing", path) if "ElementSpacing" in header else [1.0] * 3)
    directions = _numbers_of(
        header, DIRECTIONS, np.eye(3).ravel().tolist(), path
    )  # row i: direction of axis i
    origin = _numbers_of(header, ORIGINS, [0.0] * 3, path)
    return lps_image(values, np.array(directions).reshape(3, 3) * spacing[:, None], origin, path)


def _header(content: bytes, path: Path) -> tuple[dict[str, str], int]:
    """Return the entries and the position of the first byte after the header."""
    entries: dict[str, str] = {}
    start = 0
    while start < min(len(content), LONGEST_HEADER):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        key, equals, value = content[start:end].decode("latin-1").partition("=")
        start = end + 1
        if not equals:
            break
        entries[key.strip()] = value.strip()
        if key.strip() == "ElementDataFile":
            return entries, start
    raise UserError(f"{path} is no MetaImage header, as it lacks the entry ElementDataFile; copy it again")


def _first(header: dict[str, str], names: tuple[str, ...], default: str) -> str:
    return next((header[name] for name in names if name in header), default)


def _numbers_of(
    header: dict[str, str], names: tuple[str, ...], default: list[float], path: Path
) -> list[float]:
    name = next((name for name in names if name in header), None)
    return default if name is None else numbers(header, name, path)
