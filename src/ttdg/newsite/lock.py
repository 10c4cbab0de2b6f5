"""The lock of an output folder, so that one process at a time writes it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ttdg.errors import UserError

LOCK = ".lock"  # name of the file; only a killed process leaves it, and it then blocks nobody
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)  # of file systems without locks
REMEDY = "wait until it ends, or choose another output folder"


@contextmanager
def lock_output(folder: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Hold the lock of an output folder, which is made if it does not exist, and removed if it stays empty.

    The operating system releases the lock if the process is killed. On a file system without locks nothing is checked.

    Raises:
        UserError: if another process holds the lock, with `remedy` at its end, or if the folder cannot be written.
    """
    made = list[Path]()
    try:
        made += [path for path in (folder, *folder.parents) if not path.exists()]  # from the inside out
        folder.mkdir(parents=True, exist_ok=True)
        held = _take(folder, remedy)
    except OSError as error:
        _remove_empty(made)
        if error.errno in FULL:
            raise
        raise UserError(
            f"cannot write to the folder {folder} ({error.strerror}); choose another output folder"
        ) from None
    with held:
        try:
            yield
        finally:  # the file goes before its lock, so that nobody locks a file without a name
            with suppress(OSError):
                (folder / LOCK).unlink()
            _remove_empty(made)


def _take(folder: Path, remedy: str) -> TextIO:
    """Return the open lock file, locked."""
    import fcntl

    while True:
        file = (folder / LOCK).open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"another process of ttdg is writing to {folder}; {remedy}") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                file.close()
                raise
            return file
        if _is_at(file, folder / LOCK):
            return file
        file.close()  # its last owner removed it between both calls


def _is_at(file: TextIO, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, each inside the next, as far as they are empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
