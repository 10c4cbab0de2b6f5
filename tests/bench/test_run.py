"""Runs: every job's result is there once, whole, and the same whatever happened on the way."""

import gzip
import multiprocessing
import resource
import shutil
import signal
import time
from dataclasses import replace

import pytest

from ttdg.bench import scoring_job
from ttdg.bench.execute import execute_job
from ttdg.bench.folder import exclusive_lock
from ttdg.bench.jobs import Scoring, Training, key_of, to_dict
from ttdg.bench.request import RunRequest
from ttdg.bench.run import run_benchmark, run_jobs
from ttdg.errors import UserError
from ttdg.evaluation.records import read_about, read_rows

FORK = multiprocessing.get_context("fork")


def rows_of(place, run):
    """Every scoring's rows but the times."""
    found = {}
    for key, job in run.jobs.items():
        if isinstance(job, Scoring):
            found[key] = [row for row in read_rows(place.record(key)) if row[4] != "seconds"]
    return found


def same(a, b):
    return str(a) == str(b)  # NaN is not equal to itself


def test_one_row_per_image_region_and_metric_and_the_cost_beside_it(finished):
    folder, run = finished
    key, job = next((k, j) for k, j in run.jobs.items() if isinstance(j, Scoring) and j.method == "norm")
    rows = read_rows(folder / "records" / f"{key}.csv.gz")
    assert len({row[:5] for row in rows}) == len(rows)
    metrics = {metric: [r for r in rows if r[4] == metric] for metric in {row[4] for row in rows}}
    assert {m: len(r) for m, r in metrics.items()} == dict.fromkeys(
        ("dice", "alignment", "structure", "hd95", "assd", "instance_dice", "instances", "seconds"), 10
    ) | {"alignment_max": 1}
    about = read_about(folder / "records" / f"{key}.csv.gz")
    assert about["job"] == to_dict(job)
    assert (about["images"], about["batches"], about["forwards"], about["backwards"]) == (10, 3, 3, 0)
    assert about["peak_bytes"] > 1e7


def test_a_second_call_does_nothing(started, place, inline):
    run = started()
    assert run_jobs(dict(run.jobs), place, lambda: inline).found == 0
    stamps = {path: path.stat().st_mtime_ns for path in place.run.rglob("*.gz")}
    again = run_jobs(dict(run.jobs), place, lambda: pytest.fail("nothing is to be run"))
    assert again.found == again.done == len(run.jobs)
    assert stamps == {path: path.stat().st_mtime_ns for path in place.run.rglob("*.gz")}


def test_killed_at_random_points_it_ends_with_the_same_records(
    started, place, tmp_path, here, killed_at_random_writes
):
    run = started()
    calm = replace(place, run=tmp_path / "calm", models=tmp_path / "calm" / "models")
    run_jobs(dict(run.jobs), calm, lambda: here(calm))
    assert killed_at_random_writes(lambda: run_jobs(dict(run.jobs), place, lambda: here(place)), 12) >= 2
    assert same(rows_of(place, run), rows_of(calm, run))
    assert not [
        path for path in place.run.rglob(".*") if path.suffix != ".lock"
    ]  # nothing half-written stays


def test_a_failed_job_leaves_its_log_and_the_others_end(started, place, inline, here):
    run = started()
    shutil.copytree(place.data, place.run.parent / "data")
    broken = replace(place, data=place.run.parent / "data")
    (broken.data / "west" / "images" / "03.png").write_bytes(b"no picture")
    ended = run_jobs(dict(run.jobs), broken, lambda: here(broken))
    kinds = {type(run.jobs[key]) for key in ended.failed}
    assert kinds == {Training, Scoring}  # those that train on west, and those that meet it
    assert len(ended.failed) + len(ended.blocked) + ended.done == len(run.jobs)
    for key, sentence in ended.failed.items():
        assert "03.png" in sentence
        assert "\n" not in sentence
        assert "UserError" in broken.log(key).read_text()
    mended = run_jobs(dict(run.jobs), place, lambda: inline)
    assert mended.found == ended.done
    assert mended.done == len(run.jobs)


def test_an_unreadable_checkpoint_is_one_sentence_and_touches_no_record(started, place, inline):
    run = started()
    run_jobs(dict(run.jobs), place, lambda: inline)
    training = next(key for key, job in run.jobs.items() if isinstance(job, Training))
    lost = next(key for key, job in run.jobs.items() if isinstance(job, Scoring) and job.training == training)
    place.record(lost).unlink()
    weights = place.model(training) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    scoring_job._last_model.clear()
    ended = run_jobs(dict(run.jobs), place, lambda: inline)
    assert list(ended.failed) == [lost]
    assert "copy the checkpoint again" in ended.failed[lost]
    assert f"or remove {place.model(training)} and give the same command again" in ended.failed[lost]
    assert ended.done == len(run.jobs) - 1


def test_a_wrong_label_map_is_one_sentence(started, place, tmp_path, here):
    """Masks whose grey values the benchmark does not know."""
    run = started()
    benchmark = {"name": "x", "labels": ["background", "disc"], "mask": {"0": "background", "7": "disc"},
                 "regions": {"disc": ["disc"]}, "normalisation": "minmax", "size": 32}  # fmt: skip
    training = next(job for job in run.jobs.values() if isinstance(job, Training))
    wrong = replace(training, benchmark=benchmark)
    ended = run_jobs({key_of(wrong): wrong}, place, lambda: here(place))
    assert "does not know: 255" in ended.failed[key_of(wrong)]


def limited(jobs, place, size, here):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        run_jobs(jobs, place, lambda: here(place))
    except UserError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (place.run.parent / "sentence").write_text(str(error))


def test_a_full_disk_is_one_sentence_and_loses_nothing(started, place, inline, here):
    run = started()
    run_jobs(dict(run.jobs), place, lambda: inline)
    kept = sorted(place.run.rglob("*.gz"))
    gone = kept.pop()
    gone.unlink()
    before = {path: path.read_bytes() for path in kept}
    child = FORK.Process(target=limited, args=(dict(run.jobs), place, 100, here))
    child.start()
    child.join(60)
    sentence = (place.run.parent / "sentence").read_text()
    assert "free some space and run the same command again" in sentence
    assert "\n" not in sentence
    assert not gone.exists()
    assert before == {path: path.read_bytes() for path in kept}
    assert run_jobs(dict(run.jobs), place, lambda: here(place)).done == len(run.jobs)


def test_two_workers_on_one_job_do_it_once(started, place):
    run = started()
    training = next(job for job in run.jobs.values() if isinstance(job, Training))
    both = [FORK.Process(target=execute_job, args=(training, place)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert place.done(training)


def test_a_folder_is_run_by_one_at_a_time(tmp_path):
    ready = FORK.Event()

    def hold():
        with exclusive_lock(tmp_path / ".lock", wait=False):
            ready.set()
            time.sleep(30)

    child = FORK.Process(target=hold)
    child.start()
    ready.wait(10)
    with (
        pytest.raises(UserError, match="another run is using"),
        exclusive_lock(tmp_path / ".lock", wait=False),
    ):
        pass
    child.kill()
    child.join()
    with exclusive_lock(tmp_path / ".lock", wait=False):
        pass


def test_an_unknown_executor_is_refused_even_if_no_job_is_left(tmp_path):
    request = RunRequest(tmp_path / "none.yaml", tmp_path / "run")
    with pytest.raises(UserError, match="unknown executor 'locl'; did you mean 'local'"):
        run_benchmark(request, "locl")


def test_records_of_another_format_are_refused_in_words(finished, tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'#{"format": 0}\n'))
    with pytest.raises(UserError, match="has record format 0, this ttdg reads 1"):
        read_about(path)
    path.write_bytes(b"torn")
    with pytest.raises(UserError, match="is not a record of this benchmark"):
        read_about(path)


@pytest.mark.slow
def test_a_continual_record_has_rows_of_every_site_of_its_stream(started, place, inline):
    run = started({"name": "main", "protocol": "single-to-each", "sources": ["west"], "limit": 4,
                   "methods": ["dua"], "streams": ["continual"]})  # fmt: skip
    assert not run_jobs(dict(run.jobs), place, lambda: inline).failed
    (record,) = (place.record(key) for key, job in run.jobs.items() if isinstance(job, Scoring))
    assert read_about(record)["dice"].keys() == {"east", "south"}
