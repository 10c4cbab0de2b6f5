"""What `ttdg bench` was asked for, and what it is to run: values that pass between its processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttdg.experiment.jobs import Job
from ttdg.experiment.place import Place
from ttdg.experiment.runfile import Run


@dataclass(frozen=True)
class Request:
    """What the command line says."""

    config: Path
    out: Path
    data: Path | None = None
    models: Path | None = None
    encoder_weights: Path | None = None
    device: str = "auto"
    workers: int | None = None
    threads: int | None = None
    only: tuple[str, ...] = ()  # experiments of the yaml; all where none is named


@dataclass(frozen=True)
class Ready:
    run: Run  # all that the folder shows: what is asked for now, and what was before
    jobs: Mapping[str, Job]  # those asked for now
    place: Place
    workers: int
    gpus: int
