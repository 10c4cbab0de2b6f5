"""Packed records are taken over by a run that plans the same scorings."""

import shutil
from dataclasses import replace

import pytest

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring, Training, key_of
from ttdg.bench.other_runs.reuse import reuse_records
from ttdg.bench.results import UNPUBLISHED_METRICS, pack_run, read_table
from ttdg.bench.run import run_jobs, still_needed
from ttdg.errors import UserError
from ttdg.evaluation.records import read_rows


@pytest.fixture
def packed(finished, tmp_path):
    pack_run(read_table(finished[0]), tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def empty(finished, tmp_path):
    return RunFolder(tmp_path / "new", finished[0] / "data", tmp_path / "new" / "models")


def test_a_run_whose_scorings_are_all_packed_trains_and_scores_nothing(finished, packed, empty):
    folder, run = finished
    scorings = {key: job for key, job in run.jobs.items() if isinstance(job, Scoring)}
    assert reuse_records(packed, run.jobs, empty) == len(scorings)
    outcome = run_jobs(dict(run.jobs), empty, lambda: pytest.fail("nothing is to be run"))
    assert (outcome.found, outcome.left) == (len(scorings), 0)
    for key in scorings:
        before, after = (read_rows(path / "records" / f"{key}.csv.gz") for path in (folder, empty.run))
        kept = [row for row in before if row[4] not in UNPUBLISHED_METRICS and row[5] == row[5]]
        assert sorted(kept) == sorted(after)


def test_records_of_a_run_that_is_not_packed_are_taken_over_too(finished, empty):
    folder, run = finished
    scorings = {key for key, job in run.jobs.items() if isinstance(job, Scoring)}
    assert reuse_records(folder, run.jobs, empty) == len(scorings)
    outcome = run_jobs(dict(run.jobs), empty, lambda: pytest.fail("nothing is to be run"))
    assert (outcome.done, outcome.found) == (len(scorings), len(scorings))
    for key in scorings:
        assert empty.record(key).read_bytes() == (folder / "records" / f"{key}.csv.gz").read_bytes()


def test_a_damaged_record_of_another_run_is_not_taken_over(finished, empty, tmp_path):
    folder, run = finished
    other = shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("models", "data"))
    record = min((other / "records").glob("*.csv.gz"))
    record.write_bytes(record.read_bytes()[:-40])
    scorings = [key for key, job in run.jobs.items() if isinstance(job, Scoring)]
    assert reuse_records(other, run.jobs, empty) == len(scorings) - 1
    assert not empty.record(record.name.removesuffix(".csv.gz")).exists()


def test_nor_does_it_train_if_it_is_to_end_with_the_models(finished, packed, empty):
    reuse_records(packed, finished[1].jobs, empty)
    outcome = run_jobs(
        dict(finished[1].jobs), empty, lambda: pytest.fail("nothing is to be run"), until="train"
    )
    assert (outcome.done, outcome.left) == (0, 0)


def test_records_of_the_folder_itself_are_kept(finished, packed, empty):
    folder, run = finished
    key = next(key for key, job in run.jobs.items() if isinstance(job, Scoring))
    empty.record(key).parent.mkdir(parents=True)
    shutil.copy(folder / "records" / f"{key}.csv.gz", empty.record(key))
    before = empty.record(key).read_bytes()
    reuse_records(packed, run.jobs, empty)
    assert empty.record(key).read_bytes() == before


def test_a_scoring_with_other_options_is_not_taken_over(finished, packed, empty):
    job = next(job for job in finished[1].jobs.values() if isinstance(job, Scoring))
    other = replace(job, seed=job.seed + 77)
    assert reuse_records(packed, {key_of(other): other}, empty) == 0
    assert not empty.record(key_of(other)).exists()


def test_a_folder_without_records_is_refused(finished, tmp_path, empty):
    with pytest.raises(UserError, match="no run at"):
        reuse_records(tmp_path, finished[1].jobs, empty)


def test_a_model_is_needed_as_long_as_one_of_its_scorings_is_left(finished):
    jobs = finished[1].jobs
    scorings = [key for key, job in jobs.items() if isinstance(job, Scoring)]
    first = jobs[scorings[0]]
    needed = still_needed(jobs, set(scorings[1:]))
    assert [job for job in needed.values() if isinstance(job, Training)] == [jobs[first.training]]
    assert not [job for job in still_needed(jobs, set(scorings)).values() if not isinstance(job, Scoring)]
