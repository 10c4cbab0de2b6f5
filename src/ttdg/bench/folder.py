"""Where a run keeps things. A job's result depends on none of this."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.jobs import Job, Scoring, Training, Tuning, key_of
from ttdg.errors import UserError
from ttdg.evaluation.records import SUFFIX


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, the data, and the machine's part in it."""

    run: Path
    data: Path
    models: Path  # shared by runs that train the same models
    device: str = "cpu"
    threads: int = 1
    encoder_weights: str | None = None

    def model(self, training: str) -> Path:
        return self.models / training

    def part(self, fitting: str) -> Path:
        return self.run / "parts" / fitting

    def tuned(self, tuning: str) -> Path:
        return self.run / "tuned" / f"{tuning}.yaml"

    def record(self, scoring: str) -> Path:
        return self.run / "records" / f"{scoring}{SUFFIX}"

    def claim(self, job: Job) -> Path:
        """What is locked while a job runs; a model's lock lies with the models, which runs may share."""
        key = key_of(job)
        return (
            self.models / f".{key}.lock" if isinstance(job, Training) else self.run / "claims" / f"{key}.lock"
        )

    def log(self, key: str) -> Path:
        return self.run / "logs" / f"{key}.log"

    def done(self, job: Job) -> bool:
        """What a job leaves behind is written whole or not at all, so that its being there is its being done."""
        key = key_of(job)
        if isinstance(job, Training):
            return (self.model(key) / "model.json").is_file()
        if isinstance(job, Scoring):
            return self.record(key).is_file()
        if isinstance(job, Tuning):
            return self.tuned(key).is_file()
        return (self.part(key) / f"{job.part}.safetensors").is_file()


def benchmark_folder(named: Path, benchmark: str) -> Path:
    """The folder itself, or the one of that name in a folder of benchmarks."""
    inside = named / benchmark
    return inside if not (named / "benchmark.yaml").exists() and inside.is_dir() else named


@contextmanager
def exclusive_lock(path: Path, wait: bool = True) -> Iterator[None]:
    """Only one process holds `path`; a killed one holds nothing. Without `wait`, a held one is an error."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UserError(
                f"another `ttdg bench` is running in {path.parent}; wait for it or choose another --out"
            ) from None
        yield


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
