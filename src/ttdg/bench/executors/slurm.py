"""SLURM, through submitit: one SLURM job a job. Nodes must see the run's folder and the data under the same paths."""

import time
from collections.abc import Mapping
from typing import Any

from ttdg.bench.executors import Options, Outcome
from ttdg.bench.folder import RunFolder
from ttdg.bench.worker import run_job
from ttdg.errors import UserError

FAILED = ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL")


class Slurm:
    """Up to `slots` SLURM jobs at a time. `cluster` is submitit's: `local` runs the same path without SLURM."""

    def __init__(self, place: RunFolder, options: Options, cluster: str = "slurm") -> None:
        try:
            import submitit
        except ImportError:
            raise UserError(
                "--executor slurm needs the package submitit: pip install 'ttdg[cluster]'"
            ) from None
        self.place, self.slots = place, options.workers or 100
        try:
            self.executor = submitit.AutoExecutor(folder=place.run / "slurm", cluster=cluster)
        except RuntimeError as error:
            raise UserError(f"no SLURM here ({error}); use --executor local") from None
        settings: dict[str, Any] = {"timeout_min": options.minutes, "name": "ttdg"}
        if cluster == "slurm":
            settings["cpus_per_task"] = place.threads
            if options.partition:
                settings["slurm_partition"] = options.partition
        if options.gpus:
            settings["gpus_per_node"] = 1
        self.executor.update_parameters(**settings)
        self.running: dict[str, tuple[Any, float]] = {}

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        self.running[key] = (self.executor.submit(run_job, key, dict(spec), self.place), time.perf_counter())

    def wait(self, seconds: float) -> list[Outcome]:
        until = time.perf_counter() + seconds
        while not (ended := [key for key, (job, _) in self.running.items() if job.done()]):
            if time.perf_counter() > until:
                return []
            time.sleep(min(0.1, seconds))
        return [self._outcome(key) for key in ended]

    def close(self) -> None:
        for job, _ in self.running.values():
            job.cancel(check=False)

    def _outcome(self, key: str) -> Outcome:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        job, since = self.running.pop(key)
        try:
            return job.result()
        except (FailedJobError, UncompletedJobError):
            took = time.perf_counter() - since
            return Outcome(key, f"SLURM job {job.job_id} ended as {job.state}", took, lost=True)
