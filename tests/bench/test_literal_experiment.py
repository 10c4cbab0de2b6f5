"""experiments/literal.yaml: the paper's ablations as rows, and a run of it at a tiny size."""

from pathlib import Path

import pytest
import yaml

from ttdg.bench.jobs import Scoring, Training
from ttdg.bench.run import run_jobs
from ttdg.errors import UserError
from ttdg.evaluation.records import read_about, read_rows

FIELDS = yaml.safe_load((Path(__file__).parents[2] / "experiments" / "literal.yaml").read_text())
LITERAL = {"encoder": "light", "steps": 1, "batch": 2, "universe": 1.0, "universe_loss": "literal"}


def trainings(run):
    return [job.recipe for job in run.jobs.values() if isinstance(job, Training)]


def labels_of(run, experiment):
    return {entry.label for entry in run.entries if entry.experiment == experiment}


def test_every_ablation_of_the_paper_is_a_row(planned):
    run = planned(*FIELDS["experiments"], recipe=FIELDS["recipe"], parts=FIELDS["parts"])
    rows = labels_of(run, "the universe and its ablations")
    assert {"source", "paper, as printed", "paper, w/o 𝒰", "paper, w/o priors", "paper, pairwise"} <= rows
    assert sum(row.startswith("ours") for row in rows) == 3
    assert {recipe.get("class_matrix", "printed") for recipe in trainings(run)} == {
        "printed",
        "masked",
        "none",
    }
    sizes = {
        3 * recipe["points"] for recipe in trainings(run)
    }  # of the file's own benchmark, with three labels
    assert min(sizes) <= 21
    assert max(sizes) >= 198
    batches = {job.batch for job in run.jobs.values() if isinstance(job, Scoring)}
    assert batches == {2, 4, 8, 16, 32}


def smaller(experiment):
    """The experiment at one target, with the ends of its grids, and without rows that need a judge."""
    methods = []
    for entry in experiment["methods"]:
        row = {"method": entry} if isinstance(entry, str) else entry
        if row["method"] in ("judge", "universe-choice"):
            continue
        grid = {name: [values[0], *values[1:][-1:]] for name, values in row.get("grid", {}).items()}
        if "recipe.points" in grid:
            grid["recipe.points"] = [6, 9]
        methods.append(row | {"grid": grid})
    few = {"targets": ["west"], "limit": 4, "seeds": [0], "batches": experiment.get("batches", [4])[:2]}
    return experiment | few | {"methods": methods}


@pytest.mark.parametrize("count", [1, pytest.param(len(FIELDS["experiments"]), marks=pytest.mark.slow)])
def test_a_tiny_run_of_it_scores_every_row(started, place, inline, count):
    tiny = FIELDS["recipe"] | {"steps": 1, "batch": 2, "points": 6}
    run = started(*map(smaller, FIELDS["experiments"][:count]), recipe=tiny)
    ended = run_jobs(dict(run.jobs), place, lambda: inline)
    assert not ended.failed
    for key, job in run.jobs.items():
        if isinstance(job, Scoring):
            scores = [row[5] for row in read_rows(place.record(key)) if row[4] == "dice"]
            assert len(scores) == 4
            assert all(0 <= score <= 1 for score in scores)
            assert read_about(place.record(key))["adapting_seconds"] > 0


def test_all_methods_of_a_literal_recipe_are_those_that_need_no_tissues(planned):
    everything = {"name": "main", "protocol": "leave-one-out", "methods": "all"}
    rows = labels_of(planned(everything, recipe=LITERAL), "main")
    assert {"source", "tent", "universe-literal"} <= rows
    assert not rows & {"judge", "universe", "universe-choice", "universe-gradient"}
    assert {"judge", "universe"} <= labels_of(
        planned(everything, recipe={"encoder": "light", "steps": 1}), "main"
    )


def test_a_method_that_needs_tissues_is_refused_before_anything_is_trained(planned):
    with pytest.raises(UserError, match="universe_loss: literal"):
        planned({"name": "main", "protocol": "leave-one-out", "methods": ["judge"]}, recipe=LITERAL)
