"""What `ttdg bench` was asked for, and what it is to run: values that pass between its processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job
from ttdg.bench.run_file import RunPlan


@dataclass(frozen=True)
class RunRequest:
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
class PreparedRun:
    run: RunPlan  # all that the folder shows: what is asked for now, and what was before
    jobs: Mapping[str, Job]  # those asked for now
    place: RunFolder
    workers: int
    gpus: int
