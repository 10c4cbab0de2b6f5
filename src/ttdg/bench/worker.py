"""Execution of one job of a benchmark in a worker process."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ttdg.bench.executors import Outcome, Work
from ttdg.bench.executors.attempt import attempt
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import from_dict


def work_in(folder: RunFolder) -> Work:
    """Return the work of an executor that runs the jobs of a benchmark."""
    return Work(partial(run_job, folder=folder), folder.run, folder.threads)


def run_job(key: str, spec: Mapping[str, Any], folder: RunFolder) -> Outcome:
    """Run a job and return its outcome. Failures of the job are not raised; their traceback is in the log."""

    def execute() -> None:
        job = from_dict(spec)
        from ttdg.bench.execute import execute_job  # imports torch, once per worker

        execute_job(job, folder)

    return attempt(key, execute, folder.log(key), folder.run)
