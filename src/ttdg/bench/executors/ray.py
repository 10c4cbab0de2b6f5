"""Jobs as Ray tasks, on a new local cluster or a running one. Nodes must share the folder of the work and the data."""

import time
from collections.abc import Mapping
from typing import Any

from ttdg.bench.executors import ExecutorOptions, Outcome, Work
from ttdg.errors import UserError


class RayExecutor:
    """Runs each job as a Ray task. The task of a killed worker is reported as lost, so the run submits it again."""

    def __init__(self, work: Work, options: ExecutorOptions) -> None:
        try:
            import ray
        except ImportError:
            raise UserError(
                "the executor ray needs the package ray; install it with `pip install 'ttdg[cluster]'`"
            ) from None
        self.ray, self.work = ray, work
        if not ray.is_initialized():
            self._connect(options)
        self.slots = options.workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // work.threads)
        needs = {"num_cpus": work.threads, "num_gpus": 1 if options.gpus else 0}
        self.task = ray.remote(max_retries=0, **needs)(_run)
        self.running: dict[Any, tuple[str, float]] = {}

    def submit(self, key: str, spec: Mapping[str, Any]) -> None:
        """Start a Ray task for the job."""
        self.running[self.task.remote(self.work, key, dict(spec))] = (key, time.perf_counter())

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcome of a job that ends within `seconds`, if there is one."""
        if not self.running:
            return []
        ended, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._outcome(reference) for reference in ended]

    def close(self) -> None:
        """Cancel the running tasks and disconnect from Ray."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.ray.shutdown()

    def _connect(self, options: ExecutorOptions) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False}
        if options.address:
            settings = {"address": options.address, "log_to_driver": False}
        elif options.workers:
            settings["num_cpus"] = options.workers * self.work.threads
        try:
            self.ray.init(**settings)
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(
                f"cannot connect to a Ray cluster ({why}); start one with `ray start --head`"
            ) from None

    def _outcome(self, reference: Any) -> Outcome:
        key, since = self.running.pop(reference)
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            took = time.perf_counter() - since
            why = str(error).split("\n", 1)[0][:200]
            return Outcome(key, f"its Ray worker was lost ({why})", took, lost=True)


def _run(work: Work, key: str, spec: Mapping[str, Any]) -> Outcome:
    return work.run(key, spec)
