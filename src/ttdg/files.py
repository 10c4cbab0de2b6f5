"""Atomic writes: a file or folder appears at its path only when it is complete.

`BoundedFile` is for decoders that read as many bytes as a damaged file asks for: Python allocates them before it reads.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


class BoundedFile:
    """An open file whose `read` allocates at most the bytes that are left in it; all else is that of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, at = file, file.tell()
        self._size = file.seek(0, os.SEEK_END)
        file.seek(at)

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; all that are left if it is negative."""
        return self._file.read(min(size, max(0, self._size - self._file.tell())))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the file."""
        return getattr(self._file, name)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to. It is renamed to `path` if the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o666 & ~_umask()  # a temporary file is readable by its owner only
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill. It replaces `path` if the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask, temporary = _umask(), Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~mask)
        for file in temporary.rglob("*"):  # some libraries write files that only their owner may read
            os.chmod(file, (0o777 if file.is_dir() else 0o666) & ~mask)
        if path.exists():
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-old-"))
            os.replace(path, old / path.name)
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
