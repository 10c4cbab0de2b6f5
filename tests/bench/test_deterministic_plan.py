"""Runs with `deterministic: true`: their keys, and that scoring and tuning compute so."""

import pytest
import torch

from ttdg.bench import execute
from ttdg.bench.execute import score_job, tune_job
from ttdg.bench.jobs import Fitting, Scoring, Training, Tuning, from_dict, key_of, to_dict

EXPERIMENT = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "tent"], "tuned": True}
TUNE = {"hospitals": 1, "images": 4}


def of_kinds(run, *kinds):
    return {key: job for key, job in run.jobs.items() if isinstance(job, kinds)}


def test_models_and_parts_are_shared_with_other_runs_and_scores_and_searches_are_not(planned):
    usual = planned(EXPERIMENT, tune=TUNE)
    fixed = planned(EXPERIMENT, tune=TUNE, deterministic=True)
    assert of_kinds(usual, Training, Fitting).keys() == of_kinds(fixed, Training, Fitting).keys()
    assert not of_kinds(usual, Scoring, Tuning).keys() & of_kinds(fixed, Scoring, Tuning).keys()
    assert (
        of_kinds(usual, Scoring, Tuning).keys()
        == of_kinds(planned(EXPERIMENT, tune=TUNE, deterministic=False), Scoring, Tuning).keys()
    )


def test_a_deterministic_job_survives_json_and_one_of_an_older_version_is_not(planned):
    for key, job in of_kinds(planned(EXPERIMENT, tune=TUNE, deterministic=True), Scoring, Tuning).items():
        assert job.deterministic
        assert key_of(from_dict(to_dict(job))) == key
        fields = to_dict(job)
        del fields["deterministic"]
        assert not from_dict(fields).deterministic


@pytest.mark.parametrize("wanted", [False, True])
def test_scoring_and_tuning_compute_as_the_job_says_and_the_process_is_left_as_it_was(
    planned, place, monkeypatch, wanted
):
    class Stopped(Exception):
        pass

    def stop(*_, **__):
        raise Stopped(torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic)

    class Card:
        sources = ()

    class Model:
        card = Card

    monkeypatch.setattr(execute, "open_scoring", stop)
    monkeypatch.setattr(execute, "tune", stop)
    monkeypatch.setattr(execute, "open_model", lambda *_: Model)
    jobs = of_kinds(planned(EXPERIMENT, tune=TUNE, deterministic=wanted), Scoring, Tuning).values()
    for kind, run in ((Scoring, score_job), (Tuning, tune_job)):
        job = next(job for job in jobs if isinstance(job, kind))
        with pytest.raises(Stopped) as stopped:
            run(job, place)
        assert stopped.value.args == (wanted, wanted)
    assert not torch.are_deterministic_algorithms_enabled()
