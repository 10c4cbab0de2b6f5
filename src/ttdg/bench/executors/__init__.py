"""Where jobs run. Every executor takes jobs while it has room and tells which have ended; none knows what a job is.

`EXECUTORS` is the table of contents; each imports what it needs when it is built, and says what to install.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ttdg.bench.folder import RunFolder
from ttdg.errors import UserError, suggestion


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `lost`: its worker died, so that it may be tried again."""

    key: str
    error: str | None = None
    seconds: float = 0.0
    lost: bool = False
    fatal: bool = False  # the next job would fail alike: a full disk


@runtime_checkable
class Executor(Protocol):
    slots: int

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        """Start a job; called only while fewer than `slots` are under way."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """The jobs that have ended, after at most so long."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """What a user may say of the machines."""

    workers: int | None = None
    address: str | None = None  # of a Ray cluster
    partition: str | None = None  # of SLURM
    minutes: int = 240  # a SLURM job may take
    gpus: int = 0  # that this machine has, or that a cluster's job needs


def _local(place: RunFolder, options: Options) -> Executor:
    from ttdg.bench.executors.local import Local

    return Local(place, options.workers or 1, options.gpus)


def _slurm(place: RunFolder, options: Options) -> Executor:
    from ttdg.bench.executors.slurm import Slurm

    return Slurm(place, options)


def _ray(place: RunFolder, options: Options) -> Executor:
    from ttdg.bench.executors.ray import Ray

    return Ray(place, options)


EXECUTORS: Mapping[str, Callable[[RunFolder, Options], Executor]] = {
    "local": _local,
    "slurm": _slurm,
    "ray": _ray,
}


def make_executor(name: str, place: RunFolder, options: Options) -> Executor:
    if name not in EXECUTORS:
        raise UserError(f"unknown executor {name!r}{suggestion(name, EXECUTORS)}")
    return EXECUTORS[name](place, options)
