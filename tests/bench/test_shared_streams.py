"""A row with views and the row without them come from one stream."""

from dataclasses import replace

import pytest

from ttdg.bench.execute import score_job, score_together
from ttdg.bench.executors import Outcome
from ttdg.bench.jobs import Scoring, key_of, without_views
from ttdg.bench.results import read_table
from ttdg.bench.run import run_jobs
from ttdg.bench.scheduler import Schedule
from ttdg.bench.verification.rerun import verify_run

ROWS = {"name": "main", "protocol": "leave-one-out", "targets": ["west"], "views": ["plain", "flips"]}
METHODS = [
    "source",
    "norm",
    "tent",
    {"method": "self-training", "options": {"steps": 1, "draw": 2, "folder_steps": 2}},
]

COMPARED = ("forwards", "backwards", "images", "batches", "dice", "options")


def scorings(run, views):
    return {key: job for key, job in run.jobs.items() if isinstance(job, Scoring) and job.views == views}


def without_time(rows):
    return [row for row in rows if row[4] != "seconds"]


@pytest.mark.parametrize("stream", ["online", "offline", "folder"])
def test_one_stream_gives_both_rows_as_streams_of_their_own_do(started, place, inline, stream):
    run = started(ROWS | {"methods": METHODS, "streams": [stream]})
    ended = run_jobs(dict(run.jobs), place, lambda: inline)
    assert (ended.done, ended.failed, ended.left) == (len(run.jobs), {}, 0)
    plain, viewed = scorings(run, "plain"), scorings(run, "flips")
    assert set(inline.order).isdisjoint(plain)
    assert set(inline.order) > viewed.keys()
    elsewhere = replace(place, run=place.run / "elsewhere")  # the same models, and no record yet
    for key, job in viewed.items():
        (about, rows), _ = score_together(job, elsewhere)
        alone, rows_alone = score_job(plain[about["key"]], place)
        assert about["in_stream_of"] == key
        assert without_time(rows) == without_time(rows_alone)
        assert {name: about[name] for name in COMPARED} == {name: alone[name] for name in COMPARED}
        assert read_table(place.run).about[about["key"]]["dice"] == alone["dice"]


def test_a_record_that_exists_is_not_written_again(started, place, inline):
    run = started(ROWS | {"methods": ["tent"]})
    first = {key: job for key, job in run.jobs.items() if key not in scorings(run, "flips")}
    run_jobs(first, place, lambda: inline)
    files = {key: place.record(key).stat().st_mtime_ns for key in scorings(run, "plain")}
    ended = run_jobs(dict(run.jobs), place, lambda: inline)
    assert ended.done == len(run.jobs)
    assert {key: place.record(key).stat().st_mtime_ns for key in files} == files
    assert all("in_stream_of" not in about for about in read_table(place.run).about.values())


def test_a_scoring_without_views_waits_for_the_one_that_writes_its_record(planned):
    jobs = planned(ROWS | {"methods": ["source", "tent"]}).jobs
    trained = {key for key, job in jobs.items() if not isinstance(job, Scoring)}
    schedule = Schedule(jobs, set(trained))
    ready = schedule.ready(10)
    assert {jobs[key].views for key in ready} == {"flips"}
    for key in ready:
        schedule.start(key)
    broken, *others = ready
    schedule.end(Outcome(broken, "no", 1.0))
    for key in others:
        schedule.end(Outcome(key, None, 1.0), [without_views(jobs[key])])
    assert schedule.ready(10) == [without_views(jobs[broken])]


def test_a_scoring_behind_the_gate_and_one_without_views_stand_alone(planned):
    jobs = scorings(planned(ROWS | {"methods": ["tent"]}), "flips")
    for job in jobs.values():
        assert without_views(job) == key_of(replace(job, views="plain"))
        assert without_views(replace(job, gate=True)) is None
        assert without_views(replace(job, views="plain")) is None


def test_verification_runs_both_rows_of_a_shared_stream_alone_and_they_agree(started, place, inline, discs):
    run = started(ROWS | {"methods": ["source", "tent", "cotta"]})
    run_jobs(dict(run.jobs), place, lambda: inline)
    found = verify_run(place.run, rows=10_000, data=discs, models=place.models)
    assert found.jobs == 6
    assert found.agrees
    assert found.largest == 0.0
