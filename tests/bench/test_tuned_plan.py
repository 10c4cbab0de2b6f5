"""What a yaml that asks for tuned rows makes of it: which searches, for whom, and under which keys."""

import hashlib
import json
from dataclasses import asdict, replace

import pytest

from ttdg.bench.jobs import Scoring, Training, Tuning, from_dict, key_of, required_jobs, to_dict
from ttdg.errors import UserError

SEARCH = {"hospitals": 1, "images": 2, "batch": 2}
TUNED = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "alpha-bn"], "tuned": True}


def of(kind, run):
    return {key: job for key, job in run.jobs.items() if isinstance(job, kind)}


def test_jobs_that_were_there_before_tuning_keep_their_keys(planned):
    for key, job in planned().jobs.items():
        fields = asdict(job)
        fields.pop("tuning", None)
        kind = "score" if isinstance(job, Scoring) else "train"
        if kind == "train":
            later = {"points": 40, "sampling": 4, "edges": 0.0, "tau": 0.1}
            assert {name: fields["recipe"].pop(name) for name in later} == later
        text = json.dumps({"format": 1, "kind": kind, **fields}, sort_keys=True)
        assert key == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_tuning_survives_json_and_any_change_of_it_is_another_key(planned):
    run = planned(TUNED, tune=SEARCH)
    key, job = next(iter(of(Tuning, run).items()))
    assert key_of(from_dict(to_dict(job))) == key
    assert from_dict(to_dict(job)) == job
    for change in (
        {"search": {}},
        {"configurations": ({"alpha": 0.3},)},
        {"training": "x"},
        {"method": "dua"},
    ):
        assert key_of(replace(job, **change)) != key
    scoring = next(job for job in of(Scoring, run).values() if job.tuning)
    assert key_of(replace(scoring, tuning="x")) != key_of(scoring) != key_of(replace(scoring, tuning=None))


def test_a_split_is_tuned_once_with_the_first_seed_and_for_all(planned):
    run = planned(TUNED, tune=SEARCH, seeds=[3, 4])
    tunings, trainings = of(Tuning, run), of(Training, run)
    assert len(tunings) == 3
    assert {trainings[job.training].recipe["seed"] for job in tunings.values()} == {3}
    for job in of(Scoring, run).values():
        if job.method == "source":
            assert job.tuning is None
        else:
            sources = trainings[tunings[job.tuning].training].sources
            assert sources == trainings[job.training].sources
            assert not set(sources) & set(job.sites)
            assert "alpha" not in job.defaults


def test_the_first_seeds_models_are_trained_though_an_experiment_asks_for_others(planned):
    run = planned({**TUNED, "seeds": [7]}, tune=SEARCH, seeds=[0])
    assert sorted(job.recipe["seed"] for job in of(Training, run).values()) == [0, 0, 0, 7, 7, 7]


def test_what_a_job_needs_stands_before_it_and_tuning_waits_for_its_parts(planned):
    run = planned({**TUNED, "methods": ["deynet"]}, tune=SEARCH, seeds=[0, 1])
    seen = set()
    for key, job in run.jobs.items():
        assert seen.issuperset(required_jobs(job))
        seen.add(key)
    for job in of(Tuning, run).values():
        assert {run.jobs[key].training for key in job.fittings.values()} == {job.training}
        assert job.fittings


def test_rows_that_say_their_options_are_left_alone(planned):
    methods = ["norm", {"method": "alpha-bn", "name": "a", "options": {"alpha": 0.25}},
               {"method": "tent", "grid": {"lr": [0.1, 0.2]}}]  # fmt: skip
    assert not of(Tuning, planned({**TUNED, "methods": methods}, tune=SEARCH))
    assert not of(Tuning, planned({**TUNED, "tuned": False}, tune=SEARCH))
    both = planned({**TUNED, "methods": ["all", methods[1]]}, tune=SEARCH)
    assert {"tent", "alpha-bn", "a"} < {entry.label for entry in both.entries}


def test_a_row_may_be_tuned_beside_the_option_it_says(planned):
    entry = {"method": "dua", "name": "d", "options": {"decay": 0.9}, "tuned": True}
    job = next(iter(of(Tuning, planned({**TUNED, "methods": [entry]}, tune=SEARCH)).values()))
    assert [point["decay"] for point in job.configurations] == [0.9, 0.9]
    assert [point["least"] for point in job.configurations] == [0.005, 0.05]


def test_tuning_on_nothing_is_a_mistake_that_is_named(planned):
    with pytest.raises(UserError, match="'main' has `tuned: true`, but the file has no `tune`"):
        planned(TUNED)
    with pytest.raises(UserError, match="unknown key 'hospital'; did you mean 'hospitals'"):
        planned(TUNED, tune={"hospital": 3})
