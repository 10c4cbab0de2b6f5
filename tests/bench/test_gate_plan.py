"""Rows with the gate: how a yaml file asks for them, which jobs they make, and that they run."""

import polars as pl
import pytest

from ttdg.bench.jobs import Fitting, Scoring, Tuning, from_dict, key_of, to_dict
from ttdg.bench.results import read_table
from ttdg.bench.run import run_jobs
from ttdg.errors import UserError
from ttdg.safety.policy import GatePolicy

SINGLE = {"name": "single", "protocol": "single-to-each"}
JUDGED = {"recipe": {"encoder": "light", "universe": 0.1, "steps": 2, "batch": 2}}
LEARNING = {"learning_steps": 1, "learning_draw": 2, "folder_steps": 1}
SMALL = {"judge": {"draws": 1, "mixing_steps": 1, "hospitals": 1, **LEARNING}}


def labels(run):
    return list(dict.fromkeys(entry.label for entry in run.entries))


def test_methods_that_judge_their_own_answers_have_no_row_with_the_gate(planned):
    run = planned(SINGLE | {"methods": ["source", "tent", "judge"], "gate": [False, True]}, **JUDGED)
    assert labels(run) == ["source", "tent", "tent + gate", "judge"]


def test_an_entry_can_ask_for_the_gate_and_name_its_row(planned):
    methods = [{"method": "tent", "gate": True}, {"method": "tent", "name": "safe", "gate": True}, "norm"]
    assert labels(planned(SINGLE | {"methods": methods}, **JUDGED)) == ["tent + gate", "safe", "norm"]


def test_a_row_with_the_gate_needs_a_judge_and_has_its_own_key(planned):
    run = planned(SINGLE | {"methods": ["tent"], "gate": [False, True]}, **JUDGED)
    jobs = {(job.gate, *job.fittings): job for job in run.jobs.values() if isinstance(job, Scoring)}
    assert set(jobs) == {(False,), (True, "judge")}
    assert {job.part for job in run.jobs.values() if isinstance(job, Fitting)} == {"judge"}
    for key, job in run.jobs.items():
        assert from_dict(to_dict(job)) == job
        assert key_of(job) == key


def test_rows_without_the_gate_keep_their_keys(planned):
    plain, both = (
        planned(SINGLE | {"methods": ["tent"], "gate": gate}, **JUDGED) for gate in (False, [False, True])
    )
    assert {entry.job for entry in plain.entries} < {entry.job for entry in both.entries}


def test_a_tuned_row_with_the_gate_has_the_search_of_the_row_without_it(planned):
    fields = SINGLE | {"methods": ["tent"], "gate": [False, True], "tuned": True, "sources": ["west"]}
    run = planned(fields, tune={"hospitals": 1, "images": 4}, **JUDGED)
    (search,) = (key for key, job in run.jobs.items() if isinstance(job, Tuning))
    tuned_by = {(job.gate, job.tuning) for job in run.jobs.values() if isinstance(job, Scoring)}
    assert tuned_by == {(False, search), (True, search)}


def test_other_bounds_of_the_gate_make_another_key(planned, monkeypatch):
    fields = SINGLE | {"methods": ["tent"], "gate": [False, True]}
    before = {entry.label: entry.job for entry in planned(fields, **JUDGED).entries}
    monkeypatch.setattr("ttdg.bench.variants.GatePolicy", lambda: GatePolicy(close=0.5))
    after = {entry.label: entry.job for entry in planned(fields, **JUDGED).entries}
    assert before["tent"] == after["tent"]
    assert before["tent + gate"] != after["tent + gate"]


def test_without_a_prior_a_row_with_the_gate_is_refused(planned):
    with pytest.raises(UserError, match=r"universe: 0\.1"):
        planned(SINGLE | {"methods": ["tent"], "gate": True}, recipe={"encoder": "light", "universe": 0.0})


@pytest.mark.parametrize("stream", ["online", "folder"])
def test_rows_with_the_gate_run_and_count_its_decisions(started, place, inline, stream):
    row = {"method": "self-training", "options": {"steps": 1, "folder_steps": 1, "draw": 2}}
    fields = {"name": "main", "protocol": "leave-one-out", "targets": ["west"], "methods": [row]}
    run = started(fields | {"gate": [False, True], "streams": [stream]}, parts=SMALL, **JUDGED)
    run_jobs(dict(run.jobs), place, lambda: inline)
    table = read_table(place.run)
    counts = {table.run.jobs[key].gate: about["counts"] for key, about in table.about.items()}
    images = table.rows.filter(pl.col("metric") == "dice")["case"].n_unique()
    assert counts[True]["accepted"] + counts[True]["rejected"] == images
    assert "accepted" not in counts[False]
