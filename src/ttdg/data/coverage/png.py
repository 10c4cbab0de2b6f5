"""Check of PNG files: the compressed data must hold every row."""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

CHUNK = 1 << 16
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # colour type → values of a pixel
# first column, first row, column step and row step of the seven passes of an interlaced file
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def missing_in_png(file: BinaryIO | BytesIO) -> str | None:
    """Return why rows are missing from a PNG, or None."""
    file.seek(16)
    header = struct.unpack(">IIBBBBB", file.read(13))
    needed, held = _bytes_needed(*header[:4], interlaced=header[6] == 1), 0
    for part in _decompressed(file):
        held += part
        if held >= needed:
            return None
    return f"its data end after {held:,} of {needed:,} bytes"


def _bytes_needed(width: int, height: int, depth: int, colour: int, *, interlaced: bool) -> int:
    """Number of bytes of all rows; each row begins with the number of its filter."""
    total = 0
    for left, top, across, down in ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = (width - left + across - 1) // across, (height - top + down - 1) // down
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * CHANNELS[colour] * depth + 7) // 8)
    return total


def _decompressed(file: BinaryIO | BytesIO) -> Iterator[int]:
    """Decompress the image data in parts of bounded size; yield the number of bytes of each part."""
    stream = zlib.decompressobj()
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND":
            return
        if kind != b"IDAT":
            file.seek(length + 4, 1)
            continue
        while length and (packed := file.read(min(length, CHUNK))):
            length -= len(packed)
            while packed and not stream.eof:
                yield len(stream.decompress(packed, CHUNK))
                packed = stream.unconsumed_tail
        file.seek(4, 1)
