"""Reading NRRD files: a text header with its data in the same file (`.nrrd`) or in another (`.nhdr`)."""

import bz2
import gzip
import math
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ttdg.data.volumes.headers import at_most, data_beside, lps_image, numbers, sides_of, values_of
from ttdg.errors import UserError

TYPES = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": ("longlong", "long long", "long long int", "signed long long", "int64", "int64_t"),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
SPACES = {  # sign of the first two axes in a world to the left, back and head
    "left-posterior-superior": (1, 1), "lps": (1, 1),
    "right-anterior-superior": (-1, -1), "ras": (-1, -1),
    "left-anterior-superior": (1, -1), "las": (1, -1),
}  # fmt: skip
VECTOR = re.compile(r"\(([^)]*)\)")


def read_nrrd(path: Path) -> Any:
    """Return the volume as a NIfTI image; its axes and spacing are those of the file."""
    content = path.read_bytes()
    header, start = _header(content, path)
    shape, dtype = sides_of(header, "sizes", path), _dtype(header, path)
    name = next((name for name in ("data file", "datafile") if name in header), None)
    data = content[start:] if name is None else data_beside(path, header[name])
    decoded = _decoded(data, header, dtype, math.prod(shape) * dtype.itemsize, path)
    axes, origin = _geometry(header, path)
    return lps_image(values_of(decoded, dtype, shape, path), axes, origin.tolist(), path)


def _header(content: bytes, path: Path) -> tuple[dict[str, str], int]:
    """Return the fields and the position of the data: after the first empty line, or the end of the file."""
    if not content.startswith(b"NRRD"):
        raise UserError(f"{path} is no NRRD file; copy or export it again")
    empty = re.search(rb"\r?\n\r?\n", content)
    text = content[: empty.start() if empty else len(content)].decode("latin-1")
    fields = {}
    for line in text.splitlines()[1:]:
        key, colon, value = line.partition(":")
        if colon and not line.startswith("#") and not value.startswith("="):  # `:=` is a note, not a field
            fields[key.strip().lower()] = value.strip()
    return fields, empty.end() if empty else len(content)


def _dtype(header: dict[str, str], path: Path) -> "np.dtype[Any]":
    kind = header.get("type", "").lower()
    code = next((code for code, names in TYPES.items() if kind in names), None)
    if code is None:
        raise UserError(f"{path} has the unknown type {kind!r}; save numbers of 8 to 64 bits")
    return np.dtype(code).newbyteorder(">" if header.get("endian", "").lower() == "big" else "<")


def _decoded(data: bytes, header: dict[str, str], dtype: "np.dtype[Any]", size: int, path: Path) -> bytes:
    """Return the voxels in bytes: all of them, or one byte more than `size`."""
    encoding = header.get("encoding", "").lower()
    if encoding in ("gzip", "gz"):
        return at_most(gzip.GzipFile(fileobj=BytesIO(data)), size)
    if encoding in ("bzip2", "bz2"):
        return at_most(bz2.BZ2File(BytesIO(data)), size)
    if encoding in ("ascii", "text", "txt"):
        return np.array(data.split(), float).astype(dtype).tobytes()
    if encoding != "raw":
        raise UserError(f"{path} has the unknown encoding {encoding!r}; save it as raw or gzip")
    return data


def _geometry(header: dict[str, str], path: Path) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
    """Return the steps along the axes and the origin, in millimetres to the left, back and head."""
    if "space directions" not in header:
        spacing = numbers(header, "spacings", path) if "spacings" in header else [1.0] * 3
        return np.diag(spacing), np.zeros(3)
    space = header.get("space", "left-posterior-superior").lower()
    if space not in SPACES:
        raise UserError(f"{path} has the unknown space {space!r}; save it in left-posterior-superior")
    world = np.array([*SPACES[space], 1.0])
    axes = np.array([_vector(text, path) for text in VECTOR.findall(header["space directions"])])
    origin = VECTOR.findall(header.get("space origin", "(0,0,0)"))
    if axes.shape != (3, 3) or len(origin) != 1:
        raise UserError(f"{path} lacks directions of three axes; export it again with its geometry")
    return axes * world, np.array(_vector(origin[0], path)) * world


def _vector(text: str, path: Path) -> list[float]:
    return numbers({"vector": text.replace(",", " ")}, "vector", path)
