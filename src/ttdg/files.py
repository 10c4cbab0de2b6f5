"""Atomic writes: a file or folder appears at its path only when it is complete."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
