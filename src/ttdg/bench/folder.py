"""Paths inside a run's folder, and locks. The result of a job depends on none of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.jobs import Job, Scoring, Training, Tuning, key_of
from ttdg.bench.record_check import record_fault
from ttdg.errors import UserError
from ttdg.evaluation.records import SUFFIX


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run with the data, the models, and the device and threads of its jobs."""

    run: Path
    data: Path
    models: Path  # may be shared by runs that train the same models
    device: str = "cpu"
    threads: int = 1
    encoder_weights: str | None = None

    def model(self, training: str) -> Path:
        """Return the folder of a source model, given the key of its training job."""
        return self.models / training

    def part(self, fitting: str) -> Path:
        """Return the folder of a fitted part, given the key of its fitting job."""
        return self.run / "parts" / fitting

    def tuned(self, tuning: str) -> Path:
        """Return the file of chosen options, given the key of the tuning job."""
        return self.run / "tuned" / f"{tuning}.yaml"

    def record(self, scoring: str) -> Path:
        """Return the record file of a scoring job, given its key."""
        return self.run / "records" / f"{scoring}{SUFFIX}"

    def claim(self, job: Job) -> Path:
        """Return the lock file of a job; the lock of a model is in the models folder, which runs may share."""
        key = key_of(job)
        return (
            self.models / f".{key}.lock" if isinstance(job, Training) else self.run / "claims" / f"{key}.lock"
        )

    def log(self, key: str) -> Path:
        """Return the log file of the job with this key."""
        return self.run / "logs" / f"{key}.log"

    def output(self, job: Job) -> Path:
        """Return the file that exists once the job has finished."""
        key = key_of(job)
        if isinstance(job, Training):
            return self.model(key) / "model.json"
        if isinstance(job, Scoring):
            return self.record(key)
        if isinstance(job, Tuning):
            return self.tuned(key)
        return self.part(key) / f"{job.part}.safetensors"

    def done(self, job: Job) -> bool:
        """True if the job's output exists and, for a scoring, its record is complete.

        Outputs are written atomically, so an existing one is whole unless the disk or a copy damaged it.
        """
        output = self.output(job)
        return output.is_file() and not (isinstance(job, Scoring) and record_fault(output))


@contextmanager
def exclusive_lock(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock file; the operating system releases it if the process is killed.

    With `wait=False`, a lock held by another process raises a UserError.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UserError(
                f"another run is using {path.parent}; wait until it ends, or choose another output folder"
            ) from None
        yield
