"""Checks of TIFF files: strips or tiles must cover the frame, and pages are counted up to a limit."""

from typing import Any

from PIL.TiffImagePlugin import TiffImageFile

MOST_PAGES = 100  # that are counted
BITS, COMPRESSION, PHOTOMETRIC, STRIPS, SAMPLES = 258, 259, 262, 273, 277
ROWS_PER_STRIP, STRIP_BYTES, PLANAR = 278, 279, 284
TILE_WIDTH, TILE_LENGTH, TILES, TILE_BYTES = 322, 323, 324, 325
UNCOMPRESSED, SEPARATE_PLANES, YCBCR = 1, 2, 6


def page_count(picture: TiffImageFile) -> int:
    """Number of pages, at most `MOST_PAGES`: a file can claim any number of them, and each costs time."""
    pages = 1
    try:
        while pages < MOST_PAGES:
            picture.seek(pages)
            pages += 1
    except EOFError:
        pass
    picture.seek(0)
    return pages


def missing_in_tiff(picture: TiffImageFile) -> str | None:
    """Return why strips or tiles are missing, or None. Call it before Pillow decodes the pixels."""
    tags: Any = picture.tag_v2
    width, height = tags.get(256), tags.get(257)  # before the picture is turned
    planes = tags.get(SAMPLES, 1) if tags.get(PLANAR, 1) == SEPARATE_PLANES else 1
    if TILES in tags:
        across, down = tags[TILE_WIDTH], tags[TILE_LENGTH]
        kind, places, sizes = "tiles", tags[TILES], tags.get(TILE_BYTES, ())
        needed = -(-width // across) * -(-height // down) * planes
    else:
        rows = min(tags.get(ROWS_PER_STRIP, height), height)
        kind, places, sizes = "strips", tags[STRIPS], tags.get(STRIP_BYTES, ())
        needed = -(-height // rows) * planes
    places, sizes = (x if isinstance(x, tuple) else (x,) for x in (places, sizes))
    if len(places) < needed:
        return f"it holds {len(places):,} of {needed:,} {kind}"
    if sizes and not all(sizes[:needed]):
        return f"some of its {kind} are empty"
    bits = tags.get(BITS, (1,))
    bits = sum(bits if isinstance(bits, tuple) else (bits,))
    whole = -(-width * bits // 8) * height
    plain = tags.get(COMPRESSION, UNCOMPRESSED) == UNCOMPRESSED and tags.get(PHOTOMETRIC) != YCBCR
    if plain and 0 < sum(sizes) < whole:
        return f"its data end after {sum(sizes):,} of {whole:,} bytes"
    return None
