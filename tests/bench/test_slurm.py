"""SLURM jobs are judged by their results and by squeue; SLURM's commands are scripts here, except in the last test."""

import os
import shutil
import subprocess
import threading
import time

import pytest

from ttdg.bench.executors import ExecutorOptions, Outcome, Work, slurm_queue
from ttdg.bench.executors.slurm_queue import UNLISTED, SlurmQueue
from ttdg.bench.run import run_jobs
from ttdg.bench.worker import work_in
from ttdg.errors import UserError


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """`cluster(squeue="…", sbatch="…")` writes the commands as scripts; scancel writes its arguments into `calls`."""
    monkeypatch.setattr(slurm_queue, "POLL_SECONDS", 0.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "queue").touch()

    def write(**scripts):
        for name, script in scripts.items():
            file = tmp_path / "bin" / name
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)

    write(
        squeue=f"cat {tmp_path}/queue", srun="exit 1", sbatch="echo Submitted batch job 7",
        scancel=f"echo $@ >> {tmp_path}/calls; sed -i s/RUNNING/CANCELLED/ {tmp_path}/queue",
    )  # fmt: skip
    return write


@pytest.fixture
def queue(tmp_path, cluster):
    """`queue("7 RUNNING")` sets what squeue prints."""
    return lambda *lines: (tmp_path / "queue").write_text("".join(f"{line}\n" for line in lines))


def work(key, spec):
    return Outcome(key)


@pytest.fixture
def executor(tmp_path, cluster):
    pytest.importorskip("submitit", reason="the slurm extra is not installed")
    from ttdg.bench.executors.slurm import SlurmExecutor

    return lambda: SlurmExecutor(Work(work, tmp_path / "run"), ExecutorOptions(partition="short", minutes=3))


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL", "COMPLETED"])
def test_a_job_counts_as_ended_after_two_listings(tmp_path, queue, state):
    queue(f"7 {state}", "8 RUNNING", "9 PENDING", "10 COMPLETING")
    jobs = SlurmQueue(tmp_path)
    assert jobs.ended(["7", "8", "9", "10"]) == {}
    assert jobs.ended(["7", "8", "9", "10"]) == {"7": state}


def test_a_job_that_is_no_longer_listed_has_ended(tmp_path, queue):
    jobs = SlurmQueue(tmp_path)
    assert jobs.ended(["7"]) == {}
    assert jobs.ended(["7"]) == {"7": UNLISTED}


def test_a_requeued_job_has_not_ended(tmp_path, queue):
    jobs = SlurmQueue(tmp_path)
    for state in ("NODE_FAIL", "PENDING", "NODE_FAIL"):
        queue(f"7 {state}")
        assert jobs.ended(["7"]) == {}


def test_no_job_has_ended_while_squeue_fails(tmp_path, cluster):
    cluster(squeue="exit 1")
    jobs = SlurmQueue(tmp_path)
    for _ in range(3):
        assert jobs.ended(["7"]) == {}


def test_folders_have_jobs_of_different_names(tmp_path):
    assert SlurmQueue(tmp_path / "a").name != SlurmQueue(tmp_path / "b").name
    assert SlurmQueue(tmp_path / "a").name == SlurmQueue(tmp_path / "b" / ".." / "a").name


def test_jobs_of_a_killed_command_are_cancelled_before_others_start(tmp_path, queue, executor):
    queue("5 RUNNING", "4 COMPLETED")
    name = executor().queue.name
    assert (tmp_path / "calls").read_text() == f"--signal=KILL --user={os.getuid()} --name={name}\n"


def test_nothing_is_cancelled_when_no_job_is_left(tmp_path, queue, executor):
    queue("4 COMPLETED")
    executor().close()
    assert not (tmp_path / "calls").exists()


def test_a_cancelled_job_is_lost_and_named_with_its_state(queue, executor):
    jobs = executor()
    jobs.submit("a", {})
    queue("7 RUNNING")
    assert jobs.wait(0.0) == []
    queue("7 CANCELLED")
    (outcome,) = jobs.wait(5.0)
    assert (outcome.key, outcome.lost) == ("a", True)
    assert "SLURM job 7 ended as CANCELLED" in outcome.error
    assert jobs.running == {}


def test_a_job_with_a_result_has_that_outcome_though_it_is_still_listed(queue, executor):
    from submitit.core.utils import cloudpickle_dump

    jobs = executor()
    jobs.submit("a", {})
    queue("7 COMPLETING")
    cloudpickle_dump(("success", Outcome("a", seconds=2.0)), jobs.running["a"][0].paths.result_pickle)
    assert jobs.wait(5.0) == [Outcome("a", seconds=2.0)]


def test_a_job_that_raised_is_lost_without_asking_sacct(queue, executor, cluster, tmp_path):
    from submitit.core.utils import cloudpickle_dump

    cluster(sacct=f"touch {tmp_path}/asked; exit 1")
    jobs = executor()
    jobs.submit("a", {})
    queue("7 FAILED")
    cloudpickle_dump(("error", "ModuleNotFoundError: ttdg"), jobs.running["a"][0].paths.result_pickle)
    (outcome,) = jobs.wait(5.0)
    assert outcome.lost
    assert "7_0_log.err" in outcome.error
    assert not (tmp_path / "asked").exists()


def test_a_refused_submission_is_a_sentence(cluster, executor):
    cluster(sbatch="echo sbatch: error: invalid partition specified: short >&2; exit 1")
    with pytest.raises(UserError, match=r"SLURM did not accept a job .*invalid partition specified: short"):
        executor().submit("a", {})


def test_a_job_gets_no_signal_before_its_time_limit(tmp_path, executor):
    jobs = executor()
    jobs.submit("a", {})
    script = (tmp_path / "run" / "slurm" / "7_submission.sh").read_text()
    for line in ("--signal=USR2@0", "--time=3", "--partition=short", f"--job-name={jobs.queue.name}"):
        assert f"#SBATCH {line}\n" in script


@pytest.mark.slow
def test_a_run_on_slurm_is_complete_though_a_job_is_cancelled(started, place):
    if shutil.which("sbatch") is None or subprocess.run(["squeue"], capture_output=True).returncode:
        pytest.skip("there is no SLURM here")
    pytest.importorskip("submitit", reason="the slurm extra is not installed")
    from ttdg.bench.executors.slurm import SlurmExecutor

    run = started({"name": "one", "protocol": "leave-one-out", "targets": ["west"], "methods": ["source"]})
    executor, cancelled = SlurmExecutor(work_in(place), ExecutorOptions(workers=2)), []

    def cancel():
        while not executor.running:
            time.sleep(0.05)
        cancelled.append(next(iter(executor.running.values()))[0].job_id)
        subprocess.run(["scancel", cancelled[0]], check=True)

    threading.Thread(target=cancel, daemon=True).start()
    ended = run_jobs(dict(run.jobs), place, lambda: executor)
    assert not ended.failed
    assert ended.done == len(run.jobs)
    assert cancelled
