"""What a yaml that asks for tuned rows makes of it: which searches, for whom, and under which keys."""

import hashlib
import json
from dataclasses import asdict, replace

import pytest

from ttdg.bench.config import parse_config
from ttdg.bench.jobs import Scoring, Training, Tuning, from_dict, key_of, required_jobs, to_dict
from ttdg.bench.plan import plan_jobs
from ttdg.data import split
from ttdg.errors import UserError

SEARCH = {"hospitals": 1, "images": 2, "batch": 2}
FIELDS = {
    "hospitals": 1,
    "images": 2,
    "batch": 2,
    "farthest": 1.0,
    "seed": 0,
}  # of a search before others were added
TUNED = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "alpha-bn"], "tuned": True}


def of(kind, run):
    return {key: job for key, job in run.jobs.items() if isinstance(job, kind)}


def test_jobs_that_were_there_before_tuning_keep_their_keys(planned):
    for key, job in planned().jobs.items():
        fields = asdict(job)
        kind = "score" if isinstance(job, Scoring) else "train"
        if kind == "score":
            later = {"tuning": None, "views": "plain", "learn": "all", "order": "site", "statistics": "own",
                     "deterministic": False, "gate": False}  # fmt: skip
            assert {name: fields.pop(name) for name in later} == later
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


def test_a_search_without_later_fields_has_the_key_it_always_had(planned):
    tunings = of(Tuning, planned(TUNED, tune={**SEARCH, "extensions": 0}))
    for key, job in tunings.items():
        fields = {**asdict(job), "search": {**FIELDS, **({"repeat": True} if "repeat" in job.search else {})}}
        assert (fields.pop("statistics"), fields.pop("deterministic")) == ("own", False)
        text = json.dumps({"format": 1, "kind": "tune", **fields}, sort_keys=True)
        assert key == hashlib.sha256(text.encode()).hexdigest()[:16]
    one = planned(
        TUNED, tune={**SEARCH, "images": 1, "extensions": 0}
    )  # every site holds out one image at least
    assert [job.search for job in of(Tuning, one).values()] == [{**FIELDS, "images": 1}] * 3


def test_every_batch_size_and_stream_has_its_own_search(planned):
    axes = {"batches": [1, 4], "streams": ["online", "folder"], "methods": ["tent", "alpha-bn"]}
    run = planned({**TUNED, **axes}, tune={})
    tunings = of(Tuning, run)
    for job in of(Scoring, run).values():
        search = tunings[job.tuning].search
        assert search["batch"] == job.batch
        # alpha-bn keeps nothing from batch to batch: its answers do not depend on the stream
        assert search.get("stream", "online") == (job.stream if job.method == "tent" else "online")
    assert len(tunings) == 3 * (2 * 2 + 2)
    fixed = of(Tuning, planned({**TUNED, **axes}, tune={"batch": 2}))
    assert {job.search["batch"] for job in fixed.values()} == {2}


@pytest.mark.parametrize(
    ("more", "images", "hospitals"), [({"limit": 96}, 96, 4), ({"limit": 400}, 400, 3), ({}, 10, 8)]
)
def test_a_search_is_as_long_as_the_streams_of_its_experiment(planned, more, images, hospitals):
    for job in of(Tuning, planned({**TUNED, **more}, tune={})).values():
        assert (job.search["images"], job.search["hospitals"]) == (images, hospitals)
        assert job.search["repeat"] is True, "a site holds out fewer images"
        assert job.search["extensions"] == 3


def test_on_held_out_images_a_search_is_as_long_as_those_of_the_largest_source(planned, world):
    held_out = {name: len(split(site.cases)[1]) for name, site in world.sites.items()}
    run = planned({**TUNED, "cases": "held-out"}, tune={})
    for job in of(Tuning, run).values():
        counts = [held_out[name] for name in run.jobs[job.training].sources]
        assert job.search["images"] == max(counts)
        assert job.search.get("repeat", False) == (min(counts) < max(counts))


def labels(run):
    return [entry.label for entry in run.entries]


def test_a_row_as_published_stands_beside_the_tuned_one_and_is_not_tuned(planned):
    run = planned({**TUNED, "methods": ["tent", {"method": "tent", "options": "published"}]}, tune=SEARCH)
    rows = {(entry.label, run.jobs[entry.job].tuning is None) for entry in run.entries}
    assert rows == {("tent", False), ("tent, as published", True)}
    published = [run.jobs[entry.job] for entry in run.entries if entry.label == "tent, as published"]
    assert all(job.options == {"lr": 1e-3} for job in published)
    by_hand = {"method": "tent", "options": {"lr": 1e-3}}
    again = planned({**TUNED, "methods": ["tent", {**by_hand, "name": "by hand"}]}, tune=SEARCH)
    assert set(run.jobs) == set(again.jobs), "the same jobs under another name"


def test_all_as_published_is_every_method_with_a_published_setting(planned):
    rows = ["all", {"method": "all", "options": "published"}]
    tuned, plain = (
        set(labels(planned({**TUNED, "methods": rows, "tuned": tuned}, tune=SEARCH)))
        for tuned in (True, False)
    )
    assert {"tent, as published", "vptta, as published", "grata, as published"} <= tuned
    assert (
        not {f"{name}, as published" for name in ("source", "norm", "alpha-bn", "judge", "universe")} & tuned
    )
    assert "tent, as published" in plain
    assert "grata, as published" not in plain, "its defaults are the published setting, and its row has them"


def test_a_published_setting_of_the_benchmark_counts(planned, world):
    vptta = {**TUNED, "methods": [{"method": "vptta", "options": "published"}]}
    assert {str(job.options) for job in of(Scoring, planned(vptta, tune=SEARCH)).values()} == {"{}"}
    fundus = replace(world, benchmark={**world.benchmark, "name": "fundus"})
    config = parse_config(
        {"name": "t", "recipe": {"universe": 0.0}, "experiments": [vptta], "tune": {}}, "t.yaml"
    )
    found = [job for job in plan_jobs(config, fundus).jobs.values() if isinstance(job, Scoring)]
    assert [job.options for job in found] == [{"lr": 0.05}] * 3


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"method": "alpha-bn", "options": "published"}, "no setting of method 'alpha-bn' is published"),
        ({"method": "tent", "options": "published", "tuned": True}, "`options: published` and `tuned: true`"),
        ({"method": "tent", "options": "publishd"}, "options"),
        ({"method": "all"}, "unknown method 'all'"),
    ],
)  # fmt: skip
def test_a_wrong_row_as_published_is_one_sentence(planned, entry, message):
    with pytest.raises(UserError, match=message) as raised:
        planned({**TUNED, "methods": [entry]}, tune=SEARCH)
    assert "\n" not in str(raised.value)


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
    assert [point["decay"] for point in job.configurations] == [0.9, 0.9, 0.9]
    searched = [(point["least"], point["views"]) for point in job.configurations]
    assert searched == [(0.005, 8), (0.05, 8), (0.005, 64)]  # the grid, and the published number of views


def test_tuning_on_nothing_is_a_mistake_that_is_named(planned):
    with pytest.raises(UserError, match="'main' has `tuned: true`, but the file has no `tune`"):
        planned(TUNED)
    with pytest.raises(UserError, match="unknown key 'hospital'; did you mean 'hospitals'"):
        planned(TUNED, tune={"hospital": 3})


def test_methods_that_learn_a_site_have_other_searches_in_the_folder_stream(planned):
    fields = {
        "name": "main",
        "protocol": "leave-one-out",
        "targets": ["west"],
        "methods": ["self-training", "tent"],
    }
    run = planned({**fields, "tuned": True, "streams": ["online", "folder"]}, tune=SEARCH)
    tunings = of(Tuning, run)
    searched = {(job.method, job.search.get("stream", "online")): job for job in tunings.values()}
    for (method, stream), own in (
        (("self-training", "online"), "steps"),
        (("self-training", "folder"), "folder_steps"),
    ):
        job = searched[method, stream]
        assert {own, "lr"} == {*job.configurations[0]}
        assert own not in job.defaults
    assert searched["tent", "online"].configurations == searched["tent", "folder"].configurations
    for job in of(Scoring, run).values():
        assert tunings[job.tuning].search.get("stream", "online") == job.stream
        assert not {*tunings[job.tuning].configurations[0]} & job.defaults.keys()


@pytest.mark.parametrize(("budget", "limit", "length"), [(30, None, 10), (30, 6, 6), (2, 6, 1), (None, 6, 6)])
def test_a_budget_bounds_the_length_of_the_streams_and_never_the_number_of_hospitals(
    planned, budget, limit, length
):
    fields = {**TUNED, "limit": limit}
    for job in of(Tuning, planned(fields, tune={"hospitals": 3, "budget": budget})).values():
        assert (job.search["hospitals"], job.search["images"]) == (3, length)
