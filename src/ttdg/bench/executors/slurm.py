"""SLURM through submitit, one SLURM job per job. Nodes must see the folder of the work and the data at equal paths."""

import time
from collections.abc import Mapping
from typing import Any

from ttdg.bench.executors import ExecutorOptions, Outcome, Work
from ttdg.errors import UserError


class SlurmExecutor:
    """Runs up to `slots` SLURM jobs at a time.

    `cluster` is passed to submitit; `local` runs the same code without SLURM, for tests.
    """

    def __init__(self, work: Work, options: ExecutorOptions, cluster: str = "slurm") -> None:
        try:
            import submitit
        except ImportError:
            raise UserError(
                "the executor slurm needs the package submitit; install it with `pip install 'ttdg[cluster]'`"
            ) from None
        self.work, self.slots = work, options.workers or 100
        try:
            self.executor = submitit.AutoExecutor(folder=work.folder / "slurm", cluster=cluster)
        except RuntimeError as error:
            raise UserError(f"SLURM is not available ({error}); use the executor local") from None
        settings: dict[str, Any] = {"timeout_min": options.minutes, "name": "ttdg"}
        if cluster == "slurm":
            settings["cpus_per_task"] = work.threads
            if options.partition:
                settings["slurm_partition"] = options.partition
        if options.gpus:
            settings["gpus_per_node"] = 1
        self.executor.update_parameters(**settings)
        self.running: dict[str, tuple[Any, float]] = {}

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        """Submit the job to SLURM."""
        self.running[key] = (self.executor.submit(self.work.run, key, dict(spec)), time.perf_counter())

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of the jobs that end within `seconds`."""
        until = time.perf_counter() + seconds
        while not (ended := [key for key, (job, _) in self.running.items() if job.done()]):
            if time.perf_counter() > until:
                return []
            time.sleep(min(0.1, seconds))
        return [self._outcome(key) for key in ended]

    def close(self) -> None:
        """Cancel the running SLURM jobs."""
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
