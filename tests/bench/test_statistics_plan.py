"""Rows with other BatchNorm statistics: how a yaml file asks for them, and which jobs they make."""

import pytest

from ttdg.bench.jobs import Scoring, Tuning, from_dict, key_of, to_dict
from ttdg.bench.results import read_table
from ttdg.bench.run import run_jobs
from ttdg.errors import UserError

SINGLE = {"name": "single", "protocol": "single-to-each"}


def labels(run):
    return list(dict.fromkeys(entry.label for entry in run.entries))


def keys(run):
    return {entry.label: entry.job for entry in run.entries if entry.sources == "west"}


def test_a_method_on_batch_statistics_has_a_row_for_each_base_and_any_other_method_one_row(planned):
    run = planned(SINGLE | {"methods": ["source", "tent"], "statistics": ["eval", "mix", "batch"]})
    assert labels(run) == ["source", "tent, eval statistics", "tent, mix statistics", "tent"]


def test_statistics_are_combined_with_views(planned):
    run = planned(SINGLE | {"methods": ["tent"], "statistics": "mix", "views": ["plain", "flips"]})
    assert labels(run) == ["tent, mix statistics", "tent, mix statistics + flips"]


def test_an_entry_may_name_its_own_statistics(planned):
    methods = [
        "tent",
        {"method": "tent", "statistics": "eval", "name": "mine"},
        {"method": "sar", "statistics": "mix"},
    ]
    assert labels(planned(SINGLE | {"methods": methods})) == ["tent", "mine", "sar, mix statistics"]


def test_rows_with_their_own_statistics_keep_their_keys_and_others_have_their_own(planned):
    fields = SINGLE | {"methods": ["source", "tent"], "tuned": True}
    tune = {"hospitals": 1, "images": 4}
    before = planned(fields, tune=tune)
    after = planned(fields | {"statistics": ["batch", "eval"]}, tune=tune)
    assert {label: keys(after)[label] for label in keys(before)} == keys(before)
    assert len({*keys(after).values()}) == 3
    assert before.jobs.keys() < after.jobs.keys()  # searches and models too


def test_a_base_has_a_search_of_its_own(planned):
    fields = SINGLE | {"methods": ["tent"], "statistics": ["own", "eval"], "tuned": True, "sources": ["west"]}
    run = planned(fields, tune={"hospitals": 1, "images": 4})
    searches = {job.statistics: key for key, job in run.jobs.items() if isinstance(job, Tuning)}
    assert searches.keys() == {"own", "eval"}
    scorings = [job for job in run.jobs.values() if isinstance(job, Scoring)]
    assert all(job.tuning == searches[job.statistics] for job in scorings)


def test_jobs_with_statistics_survive_json_and_those_of_an_older_version_have_their_own(planned):
    run = planned(SINGLE | {"methods": ["tent"], "statistics": "eval", "tuned": True}, tune={"images": 4})
    for key, job in run.jobs.items():
        assert from_dict(to_dict(job)) == job
        assert key_of(job) == key
        if isinstance(job, Scoring | Tuning):
            fields = to_dict(job)
            del fields["statistics"]
            assert from_dict(fields).statistics == "own"


def test_unknown_statistics_are_refused_in_words(planned):
    with pytest.raises(UserError, match=r"statistics.*'own', 'eval', 'mix' or 'batch'"):
        planned(SINGLE | {"methods": ["tent"], "statistics": "train"})
    with pytest.raises(UserError, match=r"statistics.*'own', 'eval', 'mix' or 'batch'"):
        planned(SINGLE | {"methods": [{"method": "tent", "statistics": "train"}]})


@pytest.mark.slow
def test_a_row_on_source_statistics_answers_its_first_batch_as_the_source_does(started, place, inline):
    run = started({"name": "main", "protocol": "leave-one-out", "targets": ["west"], "batches": [16],
                   "methods": ["source", "tent"], "statistics": ["own", "eval"]})  # fmt: skip
    assert not run_jobs(dict(run.jobs), place, lambda: inline).failed
    table = read_table(place.run)
    by_label = {entry.label: table.rows.filter(table.rows["job"] == entry.job) for entry in table.run.entries}
    scores = {
        label: rows.filter(rows["metric"] == "structure")["value"].to_list()
        for label, rows in by_label.items()
    }
    assert scores["tent, eval statistics"] == pytest.approx(scores["source"], abs=1e-5)
    assert scores["tent"] != pytest.approx(scores["source"], abs=1e-5)
