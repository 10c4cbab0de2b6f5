"""Sizes of compressed frames, read before they are decoded.

A decoder allocates what the compressed data claim, whatever the DICOM header says. A decoder may also fill missing
rows of a truncated frame without an error.
"""

START_JPEG, START_J2K = b"\xff\xd8", b"\xff\x4f\xff\x51"
END, PADDING = b"\xff\xd9", b"\0\xff"
NO_FRAME = (0xC4, 0xC8, 0xCC)  # markers between 0xC0 and 0xCF that do not start a frame
JPEG_LS = 0xF7
STANDALONE = (0x01, *range(0xD0, 0xD8))


def wrong_codestream(data: bytes, rows: int, columns: int) -> str | None:
    """Return why compressed data cannot hold a frame of this size, or None. Data of unknown kind pass."""
    if data.startswith(START_J2K):
        size = _j2k_size(data)
    elif data.startswith(START_JPEG):
        size = _jpeg_size(data)
    else:
        return None
    if size is None:
        return "its compressed data have no size"
    if size != (rows, columns):
        return f"its compressed data are {size[1]} × {size[0]} pixels instead of {columns} × {rows}"
    if not data.rstrip(PADDING).endswith(END):
        return "its compressed data end early"
    return None


def _j2k_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) from the SIZ marker that starts a JPEG 2000 codestream."""
    if len(data) < 24:
        return None
    right, bottom, left, top = (int.from_bytes(data[at : at + 4], "big") for at in (8, 12, 16, 20))
    return bottom - top, right - left


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) from the first frame header of a JPEG or JPEG-LS."""
    place = 2
    while place + 9 <= len(data):
        if data[place] != 0xFF:
            return None
        marker = data[place + 1]
        if (0xC0 <= marker <= 0xCF and marker not in NO_FRAME) or marker == JPEG_LS:
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(height, "big"), int.from_bytes(width, "big")
        if marker == 0xFF:
            place += 1
        elif marker in STANDALONE:
            place += 2
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None
