from dataclasses import replace

import pytest

from ttdg.adaptation import METHODS
from ttdg.bench.fitting import FITTERS, Fitter
from ttdg.bench.jobs import Fitting, Scoring, Training, from_dict, key_of, required_jobs, to_dict
from ttdg.errors import UserError

SINGLE = {"name": "single", "protocol": "single-to-each", "methods": ["source"]}


def scorings(run):
    return [job for job in run.jobs.values() if isinstance(job, Scoring)]


def test_a_key_says_what_a_job_is_and_survives_json(planned):
    for key, job in planned().jobs.items():
        assert key_of(job) == key
        assert from_dict(to_dict(job)) == job
        assert key_of(from_dict(to_dict(job))) == key


def test_any_change_of_what_matters_is_another_key(planned):
    job = scorings(planned())[0]
    for change in ({"seed": 9}, {"batch": 9}, {"stream": "offline"}, {"options": {"a": 1}}, {"cases": "held-out"},
                   {"sites": {"west": "other"}}, {"order": "volume"}, {"defaults": {"lr": "1"}},
                   {"training": "x"}):  # fmt: skip
        assert key_of(replace(job, **change)) != key_of(job)


def test_every_axis_is_multiplied_and_models_are_shared(planned):
    axes = {"streams": ["online", "episodic"], "batches": [1, 4], "methods": ["source", "norm", "tent"]}
    run = planned({"name": "main", "protocol": "leave-one-out", **axes}, seeds=[0, 1])
    assert len(scorings(run)) == 3 * 2 * 2 * 2 * 3
    assert sum(isinstance(job, Training) for job in run.jobs.values()) == 3 * 2


def test_required_jobs_come_first(planned):
    seen = set()
    for key, job in planned(SINGLE, seeds=[0, 1]).jobs.items():
        assert seen.issuperset(required_jobs(job))
        seen.add(key)


def test_the_same_scoring_in_two_tables_is_one_job(planned):
    run = planned(SINGLE, SINGLE | {"name": "again"})
    assert len(run.entries) == 2 * len(scorings(run))


def test_a_continual_stream_has_all_targets_and_any_other_stream_has_one(planned):
    run = planned(SINGLE | {"streams": ["continual", "online"]})
    lengths = [(job.stream, len(job.targets)) for job in scorings(run)]
    assert lengths.count(("continual", 2)) == 3
    assert lengths.count(("online", 1)) == 6


def test_an_option_that_is_the_default_makes_no_other_job(planned):
    def tent(options):
        return [
            key_of(job)
            for job in scorings(planned(SINGLE | {"methods": [{"method": "tent", "options": options}]}))
        ]

    assert tent({}) == tent({"lr": 1e-4})
    assert tent({}) != tent({"lr": 1e-3})


def test_a_grid_makes_a_row_for_each_point(planned):
    run = planned(SINGLE | {"methods": [{"method": "alpha-bn", "grid": {"alpha": [0.1, 0.5]}}]})
    assert {entry.label for entry in run.entries} == {"alpha-bn [alpha=0.1]", "alpha-bn [alpha=0.5]"}


@pytest.mark.parametrize(("universe", "given"), [(0.0, set()), (0.1, {"prior"})])
def test_all_is_every_method_whose_parts_come_with_the_model_or_can_be_fitted(planned, universe, given):
    run = planned(SINGLE | {"methods": "all"}, recipe={"encoder": "light", "universe": universe})
    expected = {name for name, method in METHODS.items() if {*method.parts} <= {*FITTERS, *given}}
    assert {entry.label for entry in run.entries} == expected
    assert "source" in expected


def test_a_part_that_can_be_fitted_is_fitted_once_a_model_and_setting(planned, monkeypatch):
    def fit(*, size: int = 4): ...

    monkeypatch.setitem(FITTERS, "prior", Fitter(fit, lambda *_: None))
    name = next(name for name, method in METHODS.items() if method.parts == ("prior",))
    entry = {"method": name, "grid": {"prior.size": [8, 16]}}
    run = planned(SINGLE | {"methods": ["source", entry], "batches": [1, 4]})
    fittings = [job for job in run.jobs.values() if isinstance(job, Fitting)]
    assert sorted(fit.settings["size"] for fit in fittings) == [8, 8, 8, 16, 16, 16]
    assert all(job.fittings for job in scorings(run) if job.method == name)


def test_a_grid_over_the_recipe_trains_a_model_for_each_point(planned):
    entry = {"method": "tent", "grid": {"recipe.steps": [1, 2]}}
    run = planned(SINGLE | {"methods": ["source", entry]})
    trainings = {key: job for key, job in run.jobs.items() if isinstance(job, Training)}
    assert sorted(job.recipe["steps"] for job in trainings.values()) == [1, 1, 1, 2, 2, 2]
    used = {e.label: trainings[run.jobs[e.job].training].recipe["steps"] for e in run.entries}
    assert used == {"source": 1, "tent [recipe.steps=1]": 1, "tent [recipe.steps=2]": 2}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"methods": ["tnet"]}, "did you mean 'tent'"),
        ({"methods": [{"method": "tent", "options": {"lrr": 1}}]}, "did you mean 'lr'"),
        ({"methods": ["tent", "tent"]}, "two rows of a table have the name 'tent'"),
        ({"targets": ["wset"]}, "did you mean 'west'"),
    ],
)
def test_mistakes_are_found_before_anything_runs(planned, fields, sentence):
    with pytest.raises(UserError, match=sentence):
        planned(SINGLE | fields)


MISTAKEN_PARTS = [
    ({"deynte": {"steps": 10}}, "no part 'deynte'; did you mean 'deynet'"),
    ({"prior": {"steps": 10}}, "fits no part 'prior'"),
    ({"deynet": {"stepz": 10}}, "part 'deynet' has no setting 'stepz'; did you mean 'steps'"),
    ({"deynet": {"progress": 1}}, "has no setting 'progress'"),
    ({"deynet": {"steps": -3}}, "steps of part 'deynet' must be a whole number, at least 1, not -3"),
    ({"itta": {"steps": 0}}, "steps of part 'itta' must be a whole number, at least 1, not 0"),
    ({"nc-ttt": {"steps": True}}, "at least 1, not True"),
    ({"tasd-r": {"steps": 10.0}}, "a whole number, at least 1, not 10.0"),
    ({"judge": {"draws": 0}}, "draws of part 'judge' must be a whole number, at least 1, not 0"),
    ({"judge": {"mixing_steps": "5"}}, "mixing_steps of part 'judge' must be a whole number"),
    (
        {"judge": {"readings": "five"}},
        "readings of part 'judge' must be one of two, four, seven, eight, not 'five'",
    ),
    ({"judge": {"readings": ["four"]}}, "readings of part 'judge' must be one of"),
    ({"judge": {"controls": 1}}, "controls of part 'judge' must be bool, such as False, not 1"),
]


@pytest.mark.parametrize(("parts", "sentence"), MISTAKEN_PARTS)
def test_wrong_part_settings_are_refused_even_if_no_method_needs_the_part(planned, parts, sentence):
    with pytest.raises(UserError, match=sentence):
        planned(parts=parts)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"parts": {"deynet": {"steps": -3}}}, "at least 1, not -3"),
        ({"parts": {"deynet": {"stepz": 3}}}, "did you mean 'steps'"),
        ({"parts": {"deynte": {"steps": 3}}}, "sets a part 'deynte'.*did you mean 'deynet'"),
        ({"parts": {"judge": {"draws": 3}}}, "sets a part 'judge', which is not fitted for it"),
        ({"grid": {"deynet.steps": [3, 0]}}, "at least 1, not 0"),
        ({"grid": {"deynet.stepz": [3]}}, "did you mean 'steps'"),
        ({"grid": {"deynte.steps": [3]}}, "`grid` of method 'deynet' sets a part 'deynte'.*'deynet'"),
        ({"grid": {"recipes.steps": [3]}}, "did you mean 'recipe'"),
    ],
)
def test_the_part_settings_of_a_row_are_checked_like_those_of_the_run(planned, fields, sentence):
    with pytest.raises(UserError, match=sentence):
        planned(SINGLE | {"methods": [{"method": "deynet", **fields}]})


def test_every_setting_of_a_fit_reaches_its_job_unchanged(planned):
    parts = {"deynet": {"steps": 1, "seed": -1}}
    parts["judge"] = {"draws": None, "mixing_steps": 1, "readings": "seven", "controls": False, "seed": 0}
    run = planned(
        SINGLE | {"methods": ["deynet", "judge"]}, parts=parts, recipe={"encoder": "light", "universe": 0.1}
    )
    fitted = {(job.part, *job.settings.items()) for job in run.jobs.values() if isinstance(job, Fitting)}
    assert fitted == {(name, *settings.items()) for name, settings in parts.items()}


def test_a_wrong_recipe_is_named(planned):
    with pytest.raises(UserError, match="recipe: unknown key 'step'; did you mean 'steps'"):
        planned(recipe={"step": 3})


@pytest.mark.parametrize("protocol", ["ceiling", "home"])
def test_a_model_is_scored_at_home_on_patients_that_it_was_not_trained_on(planned, discs, protocol):
    from ttdg.data import find_sites, split
    from ttdg.data.image_cache import ordered_images

    run = planned({"name": "best", "protocol": protocol, "methods": ["source"], "cases": "held-out"})
    for job in run.jobs.values():
        if isinstance(job, Scoring):
            (target,) = job.targets
            assert set(run.jobs[job.training].sources) >= set(target.sites)
            images = ordered_images(
                target.sites, discs, held_out=job.cases == "held-out", shuffle=None, limit=None
            )
            trained = {case.name for case in split(find_sites(discs)[target.name].cases)[0]}
            assert images
            assert not trained & {case.name for _, case in images}


def test_seeds_begin_a_continual_stream_with_different_targets_and_every_target_has_its_rows(planned):
    run = planned(SINGLE | {"streams": ["continual"], "sources": ["east"]}, seeds=[0, 1, 2])
    orders = {job.seed: tuple(target.name for target in job.targets) for job in scorings(run)}
    assert orders == {0: ("south", "west"), 1: ("west", "south"), 2: ("south", "west")}


def test_a_continual_stream_over_single_targets_is_refused_because_it_is_the_online_stream(planned):
    with pytest.raises(UserError, match="one target; use the protocol single-to-each"):
        planned(
            {"name": "main", "protocol": "leave-one-out", "methods": ["source"], "streams": ["continual"]}
        )


def test_continual_stands_for_the_methods_that_were_published_so(planned):
    expected = ["cotta", "dua", "itta", "pass", "sictta", "vptta"]
    for methods in ("continual", ["continual"]):
        run = planned(SINGLE | {"methods": methods, "streams": ["continual"]})
        assert sorted({entry.label for entry in run.entries}) == expected
    published = [{"method": "continual", "options": "published"}]
    run = planned(SINGLE | {"methods": published, "streams": ["continual"]})
    assert {entry.label.removesuffix(", as published") for entry in run.entries} <= {*expected}
