"""Check of JPEG files: the compressed data must hold every block.

The decoder fills missing blocks with the last colour. Whether a block is missing cannot be seen from the pixels, so the
file is decoded again with more data before its end: a complete picture ignores them, and an incomplete one changes.
"""

import io
from typing import BinaryIO

import numpy as np
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

STANDALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length: TEM and the restart markers
START_OF_SCAN, END = 0xDA, 0xD9
MORE = bytes((i * 73 + 41) % 251 for i in range(512))  # any data without the byte 0xFF


def missing_in_jpeg(picture: ImageFile, file: BinaryIO | io.BytesIO, side: int | None = None) -> str | None:
    """Return why blocks are missing from a decoded JPEG, or None; `side` is that of the draft it was decoded for."""
    file.seek(0)
    data = file.read()
    end = _end_of_image(data)
    with JpegImageFile(io.BytesIO(data[:end] + MORE + b"\xff\xd9")) as longer:
        if side is not None:
            longer.draft(None, (side, side))
        if longer.size == picture.size and np.array_equal(np.asarray(longer), np.asarray(picture)):
            return None
    return "its compressed data end before the last row"


def _end_of_image(data: bytes) -> int:
    """Position of the marker that ends the first image; the length of the data if there is none."""
    place = 2
    while 0 <= place < len(data) - 1:
        if data[place] != 0xFF or data[place + 1] == 0xFF:
            place += 1
            continue
        marker = data[place + 1]
        if marker == END:
            return place
        if marker == 0x00 or marker in STANDALONE:
            place += 2
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == START_OF_SCAN or marker == 0x00 or marker in STANDALONE:
            place = data.find(b"\xff", place)  # skip compressed data
    return len(data)
