"""Rows with views: how a yaml file asks for them, and which jobs they make."""

import polars as pl
import pytest

from ttdg.adaptation import METHODS
from ttdg.bench.jobs import Scoring, Tuning, from_dict, key_of, to_dict
from ttdg.bench.results import read_table
from ttdg.bench.run import run_jobs
from ttdg.errors import UserError

SINGLE = {"name": "single", "protocol": "single-to-each"}


def labels(run):
    return list(dict.fromkeys(entry.label for entry in run.entries))


def keys(run):
    return {entry.label: entry.job for entry in run.entries if entry.sources == "west"}


def test_an_experiment_has_every_method_with_each_of_its_views(planned):
    run = planned(SINGLE | {"methods": ["source", "tent"], "views": ["plain", "flips"]})
    assert labels(run) == ["source", "source + flips", "tent", "tent + flips"]
    assert {job.views for job in run.jobs.values() if isinstance(job, Scoring)} == {"plain", "flips"}


def test_views_of_an_entry_replace_those_of_its_experiment(planned):
    methods = [
        {"method": "tent", "views": "flips"},
        {"method": "tent", "name": "mine", "views": "scales"},
        "source",
    ]
    assert labels(planned(SINGLE | {"methods": methods})) == ["tent + flips", "mine", "source"]
    both = [{"method": "tent", "name": "mine", "views": ["plain", "scales"]}]
    assert labels(planned(SINGLE | {"methods": both, "views": "flips"})) == ["mine", "mine + scales"]


def test_rows_without_views_keep_their_keys_and_others_have_their_own(planned):
    plain = keys(planned(SINGLE | {"methods": ["source", "tent"]}))
    both = keys(planned(SINGLE | {"methods": ["source", "tent"], "views": ["plain", "flips", "scales"]}))
    assert {label: both[label] for label in plain} == plain
    assert len(set(both.values())) == 6


def test_a_job_with_views_survives_json_and_one_of_an_older_version_has_none(planned):
    run = planned(SINGLE | {"methods": ["source"], "views": "flips"})
    for key, job in run.jobs.items():
        assert from_dict(to_dict(job)) == job
        assert key_of(job) == key
        if isinstance(job, Scoring):
            fields = to_dict(job)
            del fields["views"]
            assert from_dict(fields).views == "plain"


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.flips])
def test_a_method_that_mirrors_images_itself_has_no_second_row_with_flips(planned, name):
    recipe = {"encoder": "light", "universe": 0.1}
    run = planned(SINGLE | {"methods": [name], "views": ["plain", "flips", "scales"]}, recipe=recipe)
    assert labels(run) == [name, f"{name} + scales"]
    asked = planned(SINGLE | {"methods": [{"method": name, "views": "flips"}]}, recipe=recipe)
    assert labels(asked) == [name]


def test_rows_with_and_without_views_share_one_search(planned):
    fields = SINGLE | {"methods": ["alpha-bn"], "views": ["plain", "flips"], "tuned": True}
    run = planned(fields, tune={"hospitals": 1, "images": 4})
    scorings = [job for job in run.jobs.values() if isinstance(job, Scoring)]
    searches = {key for key, job in run.jobs.items() if isinstance(job, Tuning)}
    assert {job.tuning for job in scorings} == searches
    assert len(searches) == 3  # one for each source site


@pytest.mark.parametrize(
    "fields",
    [{"views": "flip"}, {"views": ["plain", "flip"]}, {"methods": [{"method": "tent", "views": "flip"}]}],
)
def test_unknown_views_are_refused_in_words(planned, fields):
    with pytest.raises(UserError, match=r"views.*'plain', 'flips' or 'scales'"):
        planned(SINGLE | {"methods": ["source"]} | fields)


def test_no_views_are_refused(planned):
    with pytest.raises(UserError, match="views"):
        planned(SINGLE | {"methods": ["source"], "views": []})


def test_rows_with_views_run_and_answer_otherwise_than_without(started, place, inline):
    run = started({"name": "main", "protocol": "leave-one-out", "targets": ["west"], "methods": ["source"],
                   "views": ["plain", "flips"]})  # fmt: skip
    run_jobs(dict(run.jobs), place, lambda: inline)
    table = read_table(place.run)
    passes = {
        table.run.jobs[key].views: about["forwards"] / about["batches"] for key, about in table.about.items()
    }
    assert passes == {"plain": 1.0, "flips": 2.0}
    structure = table.rows.filter(pl.col("metric") == "structure").group_by("job").agg(pl.col("value").mean())
    assert structure["value"].n_unique() == 2
