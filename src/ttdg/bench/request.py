"""The request for a run and the prepared run: values passed between the scheduler and its planning process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job
from ttdg.bench.run_file import RunPlan
from ttdg.bench.selection import EVERYTHING, Piece


@dataclass(frozen=True)
class RunRequest:
    """A request to run a benchmark. None means the default."""

    config: Path
    out: Path
    data: Path | None = None
    models: Path | None = None
    encoder_weights: Path | None = None
    device: str = "auto"
    workers: int | None = None
    threads: int | None = None
    only: tuple[str, ...] = ()  # names of experiments to run; empty means all
    piece: Piece = EVERYTHING  # seeds, rows and targets to run
    records: tuple[Path, ...] = ()  # packed records, whose scorings and searches are not made again


@dataclass(frozen=True)
class PreparedRun:
    """A planned run.

    Attributes:
        run: Plan of the whole folder: experiments requested now and by earlier calls.
        jobs: Jobs requested now.
        folder: Paths, device and threads of the run.
        workers: Number of jobs that run at the same time.
        gpus: Number of GPUs that the jobs may use.
        remarks: What a user should know before the jobs run.
    """

    run: RunPlan
    jobs: Mapping[str, Job]
    folder: RunFolder
    workers: int
    gpus: int
    remarks: tuple[str, ...] = ()
