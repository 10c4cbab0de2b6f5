"""`ttdg bench`: jobs in, records out. Killed at any moment, the same call goes on from what is recorded."""

import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ttdg.bench.executors import Executor, Options, make_executor
from ttdg.bench.folder import RunFolder, exclusive_lock
from ttdg.bench.jobs import Job, to_dict
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.scheduler import Schedule
from ttdg.errors import UserError

PULSE = 0.25  # seconds between two looks at the workers


@dataclass(frozen=True)
class RunOutcome:
    """What became of the jobs. `failed` says why; `blocked` are those that needed a failed one."""

    done: int
    found: int  # of them, done by an earlier call
    failed: dict[str, str] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()


Watch = Callable[[Schedule], None]


def run_benchmark(
    request: RunRequest,
    executor: str = "local",
    options: Options | None = None,
    watch: Callable[[PreparedRun], Watch] = lambda ready: lambda schedule: None,
) -> RunOutcome:
    """Plan, then run what is not done yet. `watch` is told of every change."""
    request.out.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(request.out / ".lock", wait=False):
        ready = prepare_in_subprocess(request)
        wishes = options or Options()
        machine = Options(ready.workers if executor == "local" else wishes.workers, wishes.address,
                          wishes.partition, wishes.minutes, ready.gpus or wishes.gpus)  # fmt: skip
        return run_jobs(
            dict(ready.jobs),
            ready.place,
            lambda: make_executor(executor, ready.place, machine),
            watch(ready),
        )


def prepare_in_subprocess(request: RunRequest) -> PreparedRun:
    """`prepare` in a process of its own, so that this one stays small."""
    from ttdg.bench.config import read_config
    from ttdg.bench.run_file import read_run

    read_config(request.config)  # a mistake in it is said at once
    if (request.out / "run.json").exists():
        read_run(request.out)  # a stale format is said before anything is touched
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_prepare, request).result()


def _prepare(request: RunRequest) -> PreparedRun:
    from ttdg.bench.prepare import prepare_run

    return prepare_run(request)


def run_jobs(
    jobs: dict[str, Job], place: RunFolder, make: Callable[[], Executor], watch: Watch = lambda schedule: None
) -> RunOutcome:
    """Run what is not done. A failed job does not stop the others; a full disk stops all, and loses nothing."""
    schedule = Schedule(jobs, {key for key, job in jobs.items() if place.done(job)})
    watch(schedule)
    if not schedule.over():
        _drive(schedule, make(), watch)
    _sweep(place.run)
    if schedule.fatal:
        raise UserError(schedule.fatal)
    return RunOutcome(len(schedule.done), schedule.found, dict(schedule.failed), tuple(schedule.blocked()))


def _drive(schedule: Schedule, executor: Executor, watch: Watch) -> None:
    try:
        while not schedule.over():
            for key in schedule.ready(executor.slots - len(schedule.running)):
                schedule.start(key)
                executor.submit(key, to_dict(schedule.jobs[key]))
                watch(schedule)
            for outcome in executor.wait(PULSE):
                schedule.end(outcome)
            watch(schedule)
    finally:
        executor.close()


def _sweep(run: Path) -> None:
    """What killed jobs left half-written, and the locks; called once none is running."""
    for path in (*run.glob("claims/*.lock"), *run.glob("records/.*.gz"), *run.glob("tuned/.*.yaml")):
        path.unlink(missing_ok=True)
    for folder in (*run.glob("models/.*-*"), *run.glob("parts/.*-*")):
        shutil.rmtree(folder, ignore_errors=True)
