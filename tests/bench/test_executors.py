"""The same jobs on processes, through submitit and on Ray; workers that die are survived."""

import os
import signal
import sys
import threading
import time

import pytest

from ttdg.bench.executors import Executor, ExecutorOptions, make_executor
from ttdg.bench.executors.local import LocalExecutor, visible_gpus
from ttdg.bench.run import run_jobs
from ttdg.bench.worker import work_in
from ttdg.errors import UserError


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_an_unknown_executor_is_answered_with_the_known(place):
    with pytest.raises(UserError, match="did you mean 'local'"):
        make_executor("locla", work_in(place), ExecutorOptions())


@pytest.mark.parametrize(("name", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_said_with_how_to_get_it(place, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=rf"needs the package {package}; install it with `pip install 'ttdg\[cluster\]'`"
    ):
        make_executor(name, work_in(place), ExecutorOptions())


def test_a_job_that_cannot_be_read_is_a_failure_with_a_log_and_the_worker_lives(place):
    executor = LocalExecutor(work_in(place), 1)
    assert isinstance(executor, Executor)
    try:
        executor.submit("a", {"kind": "none"})
        (outcome,) = executor.wait(60.0)
        assert outcome.error == "KeyError: 'none'"
        assert not outcome.lost
        assert "Traceback" in place.log("a").read_text()
        worker = executor.workers[0].process.pid
        executor.submit("b", {"kind": "none"})
        assert executor.wait(60.0)[0].key == "b"
        assert executor.workers[0].process.pid == worker
    finally:
        executor.close()


def test_a_killed_worker_is_replaced_and_its_job_reported_lost(place):
    executor = LocalExecutor(work_in(place), 1)
    try:
        executor.submit("a", {"kind": "none"})
        os.kill(executor.workers[0].process.pid, signal.SIGKILL)
        (outcome,) = executor.wait(60.0)
        assert outcome.lost
        assert "killed by signal 9" in outcome.error
        executor.submit("a", {"kind": "none"})
        assert executor.wait(60.0)[0].error == "KeyError: 'none'"
    finally:
        executor.close()


def test_a_worker_with_the_jobs_model_takes_it(place):
    executor = LocalExecutor(work_in(place), 2)
    try:
        for key, model in (("a", "x"), ("b", "y")):
            executor.submit(key, {"kind": "none", "training": model})
        ended = set()
        until(lambda: ended.update(o.key for o in executor.wait(1.0)) or ended == {"a", "b"})
        executor.submit("c", {"kind": "none", "training": "y"})
        assert [worker.key for worker in executor.workers] == [None, "c"]
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("said", "count", "named"),
    [(None, 2, ["0", "1"]), ("3,5", 2, ["3", "5"]), ("GPU-a", 1, ["GPU-a"]), ("", 1, ["0"])],
)
def test_gpus_are_named_as_they_were_made_visible(monkeypatch, said, count, named):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if said is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert visible_gpus(count) == named


def complete(run, place, make):
    ended = run_jobs(dict(run.jobs), place, make)
    assert not ended.failed, ended.failed
    assert ended.done == len(run.jobs)


@pytest.mark.slow
def test_a_run_on_two_processes_is_complete_though_one_is_killed(started, place):
    run, executor, killed = started(), LocalExecutor(work_in(place), 2), []

    def kill():
        until(lambda: any(place.run.rglob("*.csv.gz")))
        killed.append(executor.workers[0].process.pid)
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    complete(run, place, lambda: executor)
    assert killed


@pytest.mark.slow
def test_a_run_through_submitit_is_complete(started, place):
    pytest.importorskip("submitit", reason="the slurm extra is not installed")
    from ttdg.bench.executors.slurm import SlurmExecutor

    run = started({"name": "one", "protocol": "leave-one-out", "targets": ["west"], "methods": ["source"]})
    complete(run, place, lambda: SlurmExecutor(work_in(place), ExecutorOptions(workers=2), cluster="local"))


@pytest.mark.slow
def test_a_run_on_ray_is_complete_though_a_worker_is_killed(started, place):
    pytest.importorskip("ray", reason="ray is not installed: `make test-ray` installs and runs it")
    import psutil

    from ttdg.bench.executors.ray import RayExecutor

    run, killed = started(), []
    executor = RayExecutor(work_in(place), ExecutorOptions(workers=2))

    def busy():
        return [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::_run")]

    def kill():
        until(lambda: any(place.run.rglob("*.csv.gz")) and busy())
        victim = busy()[0]
        killed.append(victim.pid)
        victim.kill()

    threading.Thread(target=kill, daemon=True).start()
    complete(run, place, lambda: executor)
    assert killed
