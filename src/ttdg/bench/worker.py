"""One job in a worker: its output goes to its log, its end is said in a sentence."""

import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ttdg.bench.executors import Outcome
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import from_dict
from ttdg.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL = ("No space left", "File too large", "Disk quota")  # as libraries say it that raise errors of their own


def run_job(key: str, spec: Mapping[str, Any], place: RunFolder) -> Outcome:
    """Never raises for what a job may do wrong; the traceback of what is not the user's to mend is in the log."""
    start = time.perf_counter()
    error, fatal = None, False
    with _logged(place.log(key)):
        try:
            job = from_dict(spec)
            from ttdg.bench.execute import execute_job  # torch and all that: paid once a worker

            execute_job(job, place)
        except Exception as trouble:  # noqa: BLE001  # a job's failure must not end the others
            os.write(2, traceback.format_exc().encode())
            fatal = getattr(trouble, "errno", None) in NO_ROOM or any(word in str(trouble) for word in FULL)
            error = _full(trouble, place.run) if fatal else _sentence(trouble)
    return Outcome(key, error, time.perf_counter() - start, fatal=fatal)


def _full(trouble: Exception, run: Path) -> str:
    why = getattr(trouble, "strerror", None) or str(trouble)
    return (
        f"cannot write in {run} ({why}); make room and give the same command again: what is recorded is kept"
    )


def _sentence(trouble: Exception) -> str:
    if isinstance(trouble, UserError):
        return str(trouble)
    return f"{trouble.__class__.__name__}: {' '.join(str(trouble).split())[:300]}"


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """stdout and stderr go to `path`, those of C libraries too. A log that cannot be written is lost."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    kept = []
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    for number in (1, 2):
        kept.append(os.dup(number))
        os.dup2(target, number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(target)
        with suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
