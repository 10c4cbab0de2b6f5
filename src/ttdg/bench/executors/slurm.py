"""SLURM through submitit, one SLURM job per job. Nodes must see the folder of the work and the data at equal paths."""

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ttdg.bench.executors import ExecutorOptions, Outcome, Work
from ttdg.bench.executors.slurm_queue import SlurmQueue
from ttdg.errors import UserError


class SlurmExecutor:
    """Runs up to `slots` SLURM jobs at a time. Jobs that an earlier command left in the folder are cancelled first.

    A job has ended when its result exists, or when the queue says so; without a result it is reported as lost.
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
        self.queue = SlurmQueue(work.folder) if cluster == "slurm" else None
        settings: dict[str, Any] = {"timeout_min": options.minutes, "name": "ttdg"}
        if self.queue is not None:
            # No signal comes before the time limit: at that signal, submitit would end or requeue the job itself.
            settings |= {"name": self.queue.name, "cpus_per_task": work.threads, "slurm_signal_delay_s": 0}
            if options.partition:
                settings["slurm_partition"] = options.partition
            self.queue.clear()
        if options.gpus:
            settings["gpus_per_node"] = 1
        self.executor.update_parameters(**settings)
        self.running: dict[str, tuple[Any, float]] = {}

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        """Submit the job to SLURM."""
        from submitit.core.utils import FailedJobError

        try:
            job = self.executor.submit(_run, self.work, key, dict(spec))
        except FailedJobError as error:
            why = " ".join(str(error).split())[:300]
            raise UserError(f"SLURM did not accept a job ({why})") from None
        self.running[key] = (job, time.perf_counter())

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of the jobs that end within `seconds`."""
        until = time.perf_counter() + seconds
        while not (outcomes := self._outcomes()) and time.perf_counter() < until:
            time.sleep(min(0.1, seconds))
        return outcomes

    def close(self) -> None:
        """Cancel the running SLURM jobs."""
        if self.queue is None:
            for job, _ in self.running.values():
                job.cancel(check=False)
        elif self.running:
            self.queue.cancel()

    def _outcomes(self) -> list[Outcome]:
        """Return the outcomes of the jobs that have ended. A result is written before its job leaves the queue."""
        jobs = {job.job_id: job for job, _ in self.running.values()}
        if self.queue is not None:
            ended = self.queue.ended(list(jobs))
        else:
            ended = {name: "FAILED" for name, job in jobs.items() if job.done()}
        folder = self.executor.folder
        with suppress(OSError):
            folder.chmod(folder.stat().st_mode)  # an NFS client then sees new files at once
        return [
            self._outcome(key, ended.get(job.job_id, ""))
            for key, (job, _) in list(self.running.items())
            if job.paths.result_pickle.exists() or job.job_id in ended
        ]

    def _outcome(self, key: str, state: str) -> Outcome:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        job, since = self.running.pop(key)
        why = f"SLURM job {job.job_id} ended as {state or 'FAILED'}; its output is in {job.paths.stderr}"
        if job.paths.result_pickle.exists():
            try:
                return job.result()
            except (FailedJobError, UncompletedJobError):
                pass
        return Outcome(key, why, time.perf_counter() - since, lost=True)


def _run(work: Work, key: str, spec: Mapping[str, Any]) -> Outcome:
    """Run a job on a node. SIGTERM ends it, which submitit would ignore until SLURM kills the job."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return work.run(key, spec)
