"""One attempt at a job in a worker process: output goes to a log file, errors become an outcome."""

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ttdg.bench.executors import Outcome
from ttdg.errors import UserError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Messages of libraries that raise other exceptions for a full disk.
FULL_DISK_MESSAGES = ("No space left", "File too large", "Disk quota")


def attempt(key: str, job: Callable[[], None], log: Path, folder: Path) -> Outcome:
    """Run a job and return its outcome. Failures of the job are not raised; their traceback is in the log.

    Args:
        key: Key of the job.
        job: The job.
        log: File to which the output of the job is appended.
        folder: The folder that the job writes to, for the message about a full disk.
    """
    start = time.perf_counter()
    error, fatal = None, False
    with _output_to(log):
        try:
            job()
        except Exception as problem:  # noqa: BLE001  # a failed job must not stop the worker
            os.write(2, traceback.format_exc().encode())
            fatal = _is_full_disk(problem)
            error = _full_disk_message(problem, folder) if fatal else _one_line(problem)
    return Outcome(key, error, time.perf_counter() - start, fatal=fatal)


def _is_full_disk(problem: Exception) -> bool:
    code = getattr(problem, "errno", None)
    return code in NO_SPACE or any(text in str(problem) for text in FULL_DISK_MESSAGES)


def _full_disk_message(problem: Exception, folder: Path) -> str:
    why = getattr(problem, "strerror", None) or str(problem)
    return f"cannot write in {folder} ({why}); free some space and run the same command again: finished jobs are kept"


def _one_line(problem: Exception) -> str:
    if isinstance(problem, UserError):
        return str(problem)
    return f"{problem.__class__.__name__}: {' '.join(str(problem).split())[:300]}"


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append stdout and stderr, also of C libraries, to `path`; a log that cannot be opened is discarded."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    saved = []
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    for number in (1, 2):
        saved.append(os.dup(number))
        os.dup2(target, number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(target)
        with suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
