"""A run in pieces: seeds, rows and targets are selected from the plan."""

import itertools

import pytest
import yaml

from ttdg.bench.jobs import Fitting, Scoring, Training, required_jobs
from ttdg.bench.prepare import prepare_run
from ttdg.bench.request import RunRequest
from ttdg.bench.results import pack_run, read_table
from ttdg.bench.run_file import read_run
from ttdg.bench.selection import Piece, select_jobs
from ttdg.errors import UserError

RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.1}
EXPERIMENT = {
    "name": "main",
    "protocol": "leave-one-out",
    "methods": [
        "source",
        {"method": "source", "name": "flips", "views": "flips"},
        "tent",
        {"method": "tent", "name": "slow tent", "options": {"lr": 1e-5}},
        {"method": "norm", "name": "norm, plain"},
        {"method": "norm", "name": "norm, flips", "views": "flips"},
        "judge",
    ],
}


@pytest.fixture
def ask(tmp_path, discs):
    """`ask(**fields of Piece)`: a prepared run of two seeds."""

    def make(**fields):
        config = {"name": "t", "recipe": RECIPE, "seeds": [0, 1], "experiments": [EXPERIMENT]}
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(config))
        request = RunRequest(
            tmp_path / "t.yaml", tmp_path / "run", discs, device="cpu", piece=Piece(**fields)
        )
        return prepare_run(request)

    return make


def scorings(ready) -> list[Scoring]:
    return [job for job in ready.jobs.values() if isinstance(job, Scoring)]


def test_without_a_selection_everything_is_run(ask):
    ready = ask()
    assert ready.jobs == ready.run.jobs


def test_a_seed_selects_its_scorings_and_models(ask):
    ready = ask(seeds=(1,))
    assert {job.seed for job in scorings(ready)} == {1}
    models = [job for job in ready.jobs.values() if isinstance(job, Training)]
    assert {job.recipe["seed"] for job in models} == {1}
    assert 2 * len(ready.jobs) == len(ready.run.jobs)


def test_a_label_selects_one_row(ask):
    for label, rate in (("tent", None), ("slow tent", 1e-5)):
        chosen = {(job.method, job.options.get("lr")) for job in scorings(ask(rows=(label,)))}
        assert chosen == {("source", None), ("tent", rate)}


def test_a_method_that_is_no_label_selects_all_of_its_rows(ask):
    chosen = {(job.method, job.views) for job in scorings(ask(rows=("norm",)))}
    assert chosen == {("source", "plain"), ("norm", "plain"), ("norm", "flips")}


def test_parts_that_no_selected_row_needs_are_not_fitted(ask):
    assert not any(isinstance(job, Fitting) for job in ask(rows=("tent",)).jobs.values())
    assert any(isinstance(job, Fitting) for job in ask(rows=("judge",)).jobs.values())


def test_a_target_selects_its_scorings_and_only_the_models_that_they_need(ask):
    ready = ask(targets=("east",))
    assert {job.targets[0].name for job in scorings(ready)} == {"east"}
    models = [job for job in ready.jobs.values() if isinstance(job, Training)]
    assert all("east" not in job.sources for job in models)


def test_every_piece_contains_the_jobs_that_its_own_jobs_require(ask):
    whole = ask().run
    for seeds, rows, targets in itertools.product([(), (0,)], [(), ("judge",)], [(), ("west", "east")]):
        jobs = select_jobs(whole.jobs, whole.entries, Piece(seeds, rows, targets), "source")
        assert all(required in jobs for job in jobs.values() for required in required_jobs(job))


def test_the_plan_of_the_folder_stays_whole(ask, tmp_path):
    whole = ask().run
    assert ask(seeds=(1,), rows=("tent",)).run.jobs == whole.jobs
    assert read_run(tmp_path / "run").jobs == whole.jobs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seeds": (7,)}, "no seed '7'"),
        ({"rows": ("tnt",)}, "no row 'tnt'.*tent"),
        ({"targets": ("moon",)}, "no target 'moon'"),
    ],
)
def test_a_selection_of_something_that_is_not_planned_is_refused(ask, fields, message):
    with pytest.raises(UserError, match=message):
        ask(**fields)


def test_the_packed_plan_of_a_run_in_pieces_names_what_was_run(finished, tmp_path):
    table = read_table(finished[0])
    kept = dict(itertools.islice(table.about.items(), 1))
    rows = table.rows.filter(table.rows["job"].cast(str) == next(iter(kept)))
    pack_run(type(table)(table.run, rows, kept), tmp_path / "packed")
    packed = read_table(tmp_path / "packed")
    assert {entry.job for entry in packed.run.entries} == kept.keys()
    assert {key for key, job in packed.run.jobs.items() if isinstance(job, Scoring)} == kept.keys()


def test_a_piece_has_the_baseline_of_every_model_of_a_grid(planned):
    grid = {"recipe.points": [20, 40]}
    methods = [{"method": name, "grid": grid} for name in ("source", "norm", "tent")]
    run = planned({"name": "grid", "protocol": "leave-one-out", "methods": methods})
    kept = select_jobs(run.jobs, run.entries, Piece(rows=("norm",)), run.baseline)
    labels = {entry.label for entry in run.entries if entry.job in kept}
    assert labels == {f"{name} [recipe.points={size}]" for name in ("source", "norm") for size in (20, 40)}
