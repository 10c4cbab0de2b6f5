"""Checks that the data of a file cover its whole frame.

Pillow fills rows that a file does not hold with black (PNG, TIFF) or grey (JPEG) and reports nothing. Each check
returns the reason why a picture is incomplete, or None. A check reads the file a second time only if the last decoded
pixels look as such rows would.
"""

from typing import BinaryIO

from PIL.ImageFile import ImageFile

from ttdg.data.coverage.jpeg import missing_in_jpeg
from ttdg.data.coverage.png import missing_in_png
from ttdg.data.coverage.tiff import missing_in_tiff, page_count

__all__ = ["missing_pixels", "page_count"]


def missing_pixels(picture: ImageFile, file: BinaryIO) -> str | None:
    """Decode the picture, and return why the file holds too few pixels, or None if it is complete.

    Args:
        picture: The picture as Pillow opened it; it is not turned yet.
        file: The file that it was opened from.
    """
    if picture.format == "TIFF" and (reason := missing_in_tiff(picture)):
        return reason
    picture.load()
    if picture.format == "PNG":
        return missing_in_png(picture, file)
    return missing_in_jpeg(picture, file) if picture.format in ("JPEG", "MPO") else None
