"""Running a benchmark. After an interruption, the same call continues from the finished jobs."""

import math
import multiprocessing
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ttdg.bench.executors import Executor, ExecutorOptions, check_executor, make_executor
from ttdg.bench.folder import RunFolder, exclusive_lock
from ttdg.bench.jobs import KINDS, Job, Scoring, kind_of, required_jobs, to_dict, with_required, without_views
from ttdg.bench.record_check import record_fault
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.scheduler import Schedule
from ttdg.bench.worker import work_in
from ttdg.errors import UserError, suggestion

POLL_SECONDS = 0.25  # seconds between two checks of the workers


@dataclass(frozen=True)
class RunOutcome:
    """Result of a run.

    Attributes:
        done: Number of finished jobs.
        found: How many of these had been finished by an earlier call.
        failed: Key → reason of the jobs that failed.
        blocked: Keys of the jobs that did not run because a job they need failed.
        damaged: Key → fault of the records that were found damaged and therefore scored again.
        left: Number of jobs that did not run or end before the time was over.
    """

    done: int
    found: int
    failed: dict[str, str] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()
    damaged: dict[str, str] = field(default_factory=dict)
    left: int = 0


Watch = Callable[[Schedule], None]


def run_benchmark(
    request: RunRequest,
    executor: str = "local",
    options: ExecutorOptions | None = None,
    watch: Callable[[PreparedRun], Watch] = lambda ready: lambda schedule: None,
    until: str = "score",
    minutes: float = math.inf,
) -> RunOutcome:
    """Plan a benchmark and run the jobs that are not finished.

    Args:
        request: Config file, output folder and overrides.
        executor: Name of an executor: local, slurm or ray.
        options: Settings of the executor.
        watch: Makes a callback from the prepared run; the callback is called after every change of the schedule.
        until: The last kind of job to run: train, fit, tune or score.
        minutes: Time after which running jobs are terminated; a later call continues.
    """
    jobs_until({}, until)  # report a wrong name before anything is planned
    check_executor(executor)
    end = time.monotonic() + 60 * minutes
    request.out.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(request.out / ".lock", wait=False):
        ready = prepare_in_subprocess(request)
        given = options or ExecutorOptions()
        machine = replace(
            given,
            workers=ready.workers if executor == "local" else given.workers,
            gpus=ready.gpus or given.gpus,
        )
        return run_jobs(
            dict(ready.jobs),
            ready.folder,
            lambda: make_executor(executor, work_in(ready.folder), machine),
            watch(ready),
            end,
            until,
        )


def jobs_until(jobs: Mapping[str, Job], last: str) -> dict[str, Job]:
    """Return the jobs up to a kind, in the order train, fit, tune, score."""
    kinds = list(KINDS)
    if last not in kinds:
        raise UserError(f"unknown kind of job {last!r}{suggestion(last, kinds)}")
    return {key: job for key, job in jobs.items() if kinds.index(kind_of(job)) <= kinds.index(last)}


def prepare_in_subprocess(request: RunRequest) -> PreparedRun:
    """Prepare a run in a separate process, so that this process does not import torch."""
    from ttdg.bench.config import read_config
    from ttdg.bench.run_file import DamagedRun, read_run

    read_config(request.config)  # report a mistake in the file before a process starts
    if (request.out / "run.json").exists():
        with suppress(DamagedRun):  # the plan is written again
            read_run(request.out)  # report another record format before a file is changed
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_prepare, request).result()


def _prepare(request: RunRequest) -> PreparedRun:
    from ttdg.bench.prepare import prepare_run

    return prepare_run(request)


def run_jobs(
    jobs: dict[str, Job],
    folder: RunFolder,
    make: Callable[[], Executor],
    watch: Watch = lambda schedule: None,
    end: float = math.inf,
    until: str = "score",
) -> RunOutcome:
    """Run the unfinished jobs up to the kind `until`; `make` builds the executor and is called only if a job is left.

    A failed job does not stop the others. A full disk stops the run with a UserError; finished jobs are kept. At the
    time `end` of the monotonic clock, running jobs are terminated.
    """
    damaged = _damaged_records(jobs, folder)
    finished = {k for k, job in jobs.items() if k not in damaged and folder.output(job).is_file()}
    wanted = jobs_until(still_needed(jobs, finished), until)
    schedule = Schedule(wanted, finished & wanted.keys())
    watch(schedule)
    if not schedule.over():
        _drive(schedule, make(), folder, watch, end)
    _clean_up(folder.run)
    if schedule.fatal:
        raise UserError(schedule.fatal)
    blocked, left = tuple(schedule.blocked()), len(schedule.left())
    return RunOutcome(len(schedule.done), schedule.found, dict(schedule.failed), blocked, damaged, left)


def still_needed(jobs: Mapping[str, Job], finished: set[str]) -> dict[str, Job]:
    """Return the finished jobs and those that are left; a model that only finished scorings need is not trained."""
    required = {key for job in jobs.values() for key in required_jobs(job)}
    left = with_required(jobs, (key for key in jobs if key not in finished | required))
    return {key: job for key, job in jobs.items() if key in finished or key in left}


def _damaged_records(jobs: dict[str, Job], folder: RunFolder) -> dict[str, str]:
    """Return key → fault of the existing records that are unreadable or incomplete."""
    paths = {key: folder.record(key) for key, job in jobs.items() if isinstance(job, Scoring)}
    faults = {key: record_fault(path) for key, path in paths.items() if path.is_file()}
    return {key: fault for key, fault in faults.items() if fault}


def _drive(schedule: Schedule, executor: Executor, folder: RunFolder, watch: Watch, end: float) -> None:
    """Submit jobs as executor slots become free, until no job is left or the time is over."""
    try:
        while not schedule.over() and time.monotonic() < end:
            for key in schedule.ready(executor.slots - len(schedule.running)):
                schedule.start(key)
                executor.submit(key, to_dict(schedule.jobs[key]))
                watch(schedule)
            for outcome in executor.wait(POLL_SECONDS):
                schedule.end(outcome, _also_written(outcome.key, schedule.jobs, folder))
            watch(schedule)
    finally:
        executor.close()


def _also_written(key: str, jobs: Mapping[str, Job], folder: RunFolder) -> list[str]:
    """Return the scoring without views whose record a job with views has written, if there is one."""
    plain = without_views(jobs[key])
    return [plain] if plain is not None and plain in jobs and folder.done(jobs[plain]) else []


def _clean_up(run: Path) -> None:
    """Remove lock files and the partial files of killed jobs; called when no job is running."""
    for path in (*run.glob("claims/*.lock"), *run.glob("records/.*.gz"), *run.glob("tuned/.*.yaml")):
        path.unlink(missing_ok=True)
    for folder in (*run.glob("models/.*-*"), *run.glob("parts/.*-*")):
        shutil.rmtree(folder, ignore_errors=True)
