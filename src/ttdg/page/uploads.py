"""Receiving image files: names are made safe, and sizes and numbers are limited while the bytes arrive."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

from ttdg.data.volumes.nifti import is_volume, volume_stem
from ttdg.errors import UserError
from ttdg.page.settings import PageSettings

LONGEST_NAME = 150  # bytes


def safe_name(name: str) -> str:
    """Return the last part of a name without control characters, leading dots and too many bytes."""
    last = name.replace("\\", "/").rpartition("/")[2]
    clean = "".join(letter for letter in last if letter.isprintable() and letter != "\ufffd").strip()
    clean = clean.lstrip(".").strip() or "image"
    if len(clean.encode()) > LONGEST_NAME:
        stem, suffix = _split(clean)
        clean = stem.encode()[: LONGEST_NAME - 10].decode(errors="ignore") + suffix[:9]
    return clean


async def receive_upload(folder: Path, name: str, body: AsyncIterator[bytes], settings: PageSettings) -> str:
    """Store one file and return its name in the folder. An existing name gets a number.

    Args:
        folder: The folder of the uploads.
        name: The name that the browser sent; it is not trusted.
        body: The bytes as they arrive.
        settings: The limits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sum(1 for _ in os.scandir(folder)) >= settings.most_files:
        raise UserError(f"a site may have {settings.most_files} uploaded files; name a folder instead")
    temporary, size = folder.parent / f".upload-{os.urandom(8).hex()}", 0
    try:
        with temporary.open("xb") as file:
            async for chunk in body:
                size += len(chunk)
                if size > settings.most_bytes:
                    limit = settings.most_bytes // 1_000_000
                    raise UserError(f"the file has more than {limit} MB; name a folder instead")
                file.write(chunk)
        return _place(temporary, folder, safe_name(name))
    finally:
        temporary.unlink(missing_ok=True)


def _split(name: str) -> tuple[str, str]:
    """Return a name without its suffix, and the suffix, which may be `.nii.gz`."""
    path = Path(name)
    stem = volume_stem(path) if is_volume(path) else path.stem
    return (stem, name[len(stem) :]) if stem else (name, "")


def _place(temporary: Path, folder: Path, name: str) -> str:
    """Give a file the first name that is free; a link is made only if the name does not exist."""
    stem, suffix = _split(name)
    for number in range(1, 100_000):
        free = name if number == 1 else f"{stem} ({number}){suffix}"
        try:
            os.link(temporary, folder / free)
        except FileExistsError:
            continue
        return free
    raise UserError("too many files have this name; rename them")
