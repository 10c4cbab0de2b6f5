"""Executors: where jobs run. An executor accepts job specifications and reports their outcomes.

- `Executor`: the interface of all executors.
- `Work`: what the workers do with a job.
- `Outcome`: how a job ended.
- `ExecutorOptions`: settings of the machines.
- `EXECUTORS`: name → factory, for processes of this machine, SLURM and Ray.
- `make_executor`: build an executor by name.

Each factory imports its packages when it is called; importing this package loads none of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ttdg.errors import UserError, suggestion

MAX_TRIES = 3  # attempts for a job whose worker dies


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        key: Key of the job.
        error: Reason of a failure in one line; None if the job succeeded.
        seconds: Duration of the job.
        lost: True if the worker died, so that the job may run again.
        fatal: True if every further job would fail too, for example because the disk is full.
    """

    key: str
    error: str | None = None
    seconds: float = 0.0
    lost: bool = False
    fatal: bool = False


@dataclass(frozen=True)
class Work:
    """What the workers do, with how many threads, and where."""

    run: Callable[[str, Mapping[str, Any]], Outcome]  # a job from its key and specification; can be pickled
    folder: Path  # all machines see it at this path
    threads: int = 1  # CPU threads of a job


@runtime_checkable
class Executor(Protocol):
    """Runs up to `slots` jobs at the same time."""

    slots: int

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        """Start a job; called only while fewer than `slots` jobs are running."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """Wait at most this long for a job to end; return the outcomes of all jobs that have ended."""
        ...

    def close(self) -> None:
        """Stop all workers; running jobs are terminated."""
        ...


@dataclass(frozen=True)
class ExecutorOptions:
    """Settings of the machines that run the jobs."""

    workers: int | None = None
    address: str | None = None  # address of a Ray cluster
    partition: str | None = None  # SLURM partition
    minutes: int = 240  # time limit of a SLURM job
    gpus: int = 0  # GPUs of this machine; on a cluster, a positive number requests one GPU per job


def _local(work: Work, options: ExecutorOptions) -> Executor:
    from ttdg.bench.executors.local import LocalExecutor

    return LocalExecutor(work, options.workers or 1, options.gpus)


def _slurm(work: Work, options: ExecutorOptions) -> Executor:
    from ttdg.bench.executors.slurm import SlurmExecutor

    return SlurmExecutor(work, options)


def _ray(work: Work, options: ExecutorOptions) -> Executor:
    from ttdg.bench.executors.ray import RayExecutor

    return RayExecutor(work, options)


EXECUTORS: Mapping[str, Callable[[Work, ExecutorOptions], Executor]] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
}


def make_executor(name: str, work: Work, options: ExecutorOptions) -> Executor:
    """Build the executor of this name: local, slurm or ray."""
    check_executor(name)
    return EXECUTORS[name](work, options)


def check_executor(name: str) -> None:
    """Raise a UserError if there is no executor of this name."""
    if name not in EXECUTORS:
        raise UserError(f"unknown executor {name!r}{suggestion(name, EXECUTORS)}")
