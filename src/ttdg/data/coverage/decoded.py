"""Check of decoded pictures: a second look at the file is taken only if the last pixels look like a filling."""

from io import BytesIO
from typing import BinaryIO

import numpy as np
from PIL.ImageFile import ImageFile

from ttdg.data.coverage.jpeg import missing_in_jpeg
from ttdg.data.coverage.png import missing_in_png

LOSSY = ("JPEG", "MPO")  # MPO is a JPEG of some cameras, followed by a second view
JPEG_BLOCK, CORNER = 8, 4  # pixels


def missing_pixels(picture: ImageFile, file: BinaryIO | BytesIO) -> str | None:
    """Return why a decoded PNG or JPEG is incomplete, or None.

    - Missing rows of a PNG are zeros. If its last row is not, only an interlaced file can be incomplete.
    - Missing blocks of a JPEG have one colour. If the end of the last block has several colours, only a progressive
      file can be incomplete, which covers the frame many times. Colours of neighbours mix at the edges of a block.
    """
    width, height = picture.size
    if picture.format == "PNG":
        row = np.asarray(picture.crop((0, height - 1, width, height)))
        return None if row.any() and "interlace" not in picture.info else missing_in_png(file)
    if picture.format not in LOSSY:
        return None
    left, top = (max(side - CORNER, (side - 1) // JPEG_BLOCK * JPEG_BLOCK) for side in picture.size)
    corner = np.asarray(picture.crop((left, top, width, height)))
    several = bool((corner != corner[0, 0]).any()) and "progressive" not in picture.info
    return None if several else missing_in_jpeg(picture, file)
