"""The queue of SLURM: which jobs of a folder have ended, and cancelling them.

States come from `squeue`, which asks the controller: `sacct` needs an accounting database, which not all clusters have.
"""

import hashlib
import os
import subprocess
import time
from pathlib import Path

POLL_SECONDS = 5.0  # least time between two calls of squeue
CANCEL_SECONDS = 60.0  # longest wait for cancelled jobs to leave the queue
COMMAND_SECONDS = 60.0  # time limit of a call
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT", "UNKNOWN",
}  # fmt: skip
UNLISTED = "UNKNOWN"  # state of a job that SLURM has forgotten


class SlurmQueue:
    """The jobs of this user that have the name of a folder."""

    def __init__(self, folder: Path) -> None:
        self.name = f"ttdg-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
        self.chosen = (f"--user={os.getuid()}", f"--name={self.name}")
        self.asked = float("-inf")
        self.states: dict[str, str] = {}
        self.missed: dict[str, int] = {}  # job → listings in a row in which it had ended

    def ended(self, jobs: list[str]) -> dict[str, str]:
        """Return the final states of those of the jobs that have ended.

        A job counts as ended after two listings, so that its last files have time to appear. While squeue fails, for
        example because the controller restarts, no further job counts as ended.
        """
        if time.monotonic() - self.asked >= POLL_SECONDS and self._ask():
            over = [job for job in jobs if self.states.get(job, UNLISTED) in ENDED]
            self.missed = {job: self.missed.get(job, 0) + 1 for job in over}
        return {job: self.states.get(job, UNLISTED) for job in jobs if self.missed.get(job, 0) >= 2}

    def cancel(self) -> None:
        """Kill the jobs at once. Results are written atomically, so a job needs no time to end."""
        _output("scancel", "--signal=KILL", *self.chosen)

    def clear(self) -> None:
        """Cancel the jobs that an earlier command left, and wait until they have ended, at most `CANCEL_SECONDS`."""
        end = time.monotonic() + CANCEL_SECONDS
        while self._ask() and not set(self.states.values()) <= ENDED and time.monotonic() < end:
            self.cancel()
            time.sleep(1.0)

    def _ask(self) -> bool:
        self.asked = time.monotonic()
        text = _output("squeue", "--noheader", "--states=all", "--format=%i %T", *self.chosen)
        if text is None:
            return False
        self.states = dict(line.split(maxsplit=1) for line in text.splitlines() if line.strip())
        return True


def _output(*command: str) -> str | None:
    """Return what a command prints, or None if it fails."""
    try:
        called = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return called.stdout
