"""Comparisons in tables whose rows have several source models; the numbers are made by hand."""

import pytest

from ttdg.bench.jobs import Scoring
from ttdg.bench.results import read_table
from ttdg.evaluation.records import write_rows
from ttdg.report.aggregate import dice_differences, image_dice
from ttdg.report.comparison import report_tables
from ttdg.report.leaderboard import build_leaderboards
from ttdg.report.worst_cases import find_worst_cases

ABOUT = {"images": 2, "batches": 1, "forwards": 2, "backwards": 1, "adapting_seconds": 0.5, "peak_bytes": 1}
SIZES = {"recipe.points": [20, 40]}
DICE = {"source [recipe.points=20]": 50, "source [recipe.points=40]": 70, "norm [recipe.points=20]": 51,
        "norm [recipe.points=40]": 68, "source": 60, "norm": 63, "other, source [recipe.points=20]": 80,
        "other, norm [recipe.points=20]": 81, "source [recipe.points=20] + flips": 52,
        "source [recipe.points=40] + flips": 74, "norm [recipe.points=20] + flips": 51,
        "norm [recipe.points=40] + flips": 75}  # fmt: skip


@pytest.fixture
def scored(started, place):
    """`scored(*methods)` is the folder of a run whose rows have the Dice above at every image, with two seeds."""

    def make(*methods, **more):
        experiment = {"name": "main", "protocol": "leave-one-out", "methods": [*methods], **more}
        run = started(experiment, seeds=[0, 1])
        for entry in run.entries:
            job = run.jobs[entry.job]
            assert isinstance(job, Scoring)
            target, dice = job.targets[0].name, DICE[entry.label] / 100
            rows = [(target, target, case, "disc", "dice", dice) for case in "ab"]
            write_rows(place.record(entry.job), ABOUT | {"key": entry.job}, rows)
        return place.run

    return make


@pytest.fixture
def grid(scored):
    """Both rows for two sizes of the universe, which need a source model each."""
    return scored({"method": "source", "grid": SIZES}, {"method": "norm", "grid": SIZES})


@pytest.fixture
def two_models(scored):
    """Two rows with the baseline's source model, and two with another one that no row of the baseline has."""
    other = {"recipe.points": [20]}
    named = [{"method": name, "name": f"other, {name}", "grid": other} for name in ("source", "norm")]
    return scored("source", "norm", *named)


def column(view, name):
    place = view.header.index(name)
    return {row[0].text: row[place].text for row in view.rows}


def test_each_row_of_a_grid_is_compared_with_the_baseline_of_its_own_source_model(grid):
    against = report_tables(read_table(grid))[-1]
    assert column(against, "Δ Dice") == {
        "source [recipe.points=20]": "", "source [recipe.points=40]": "",
        "norm [recipe.points=20]": "+1.00", "norm [recipe.points=40]": "-2.00",
    }  # fmt: skip
    assert "another source model" not in against.note


@pytest.mark.parametrize("views", [["plain", "flips"], ["flips", "plain"]])
def test_with_views_each_row_of_a_grid_is_compared_with_the_baseline_and_the_control_of_its_own_model(
    scored, views
):
    methods = ({"method": name, "grid": SIZES} for name in ("source", "norm"))
    against = report_tables(read_table(scored(*methods, views=views)))[-1]
    small, large = "[recipe.points=20]", "[recipe.points=40]"
    assert column(against, "Δ Dice") == {
        f"source {small}": "", f"source {large}": "", f"norm {small}": "+1.00", f"norm {large}": "-2.00",
        f"source {small} + flips": "+2.00", f"source {large} + flips": "+4.00",
        f"norm {small} + flips": "+1.00", f"norm {large} + flips": "+5.00",
    }  # fmt: skip
    assert column(against, "Δ to the best control") == {
        f"source {small}": "", f"source {large}": "", f"norm {small}": "-1.00", f"norm {large}": "-6.00",
        f"source {small} + flips": "", f"source {large} + flips": "",
        f"norm {small} + flips": "-1.00", f"norm {large} + flips": "+1.00",
    }  # fmt: skip


def test_the_worst_case_of_a_grid_is_shown_beside_the_baseline_of_its_own_source_model(grid):
    table = read_table(grid)
    worst = find_worst_cases(dice_differences(image_dice(table), "source"), "source")
    assert {case.method for case in worst} == {"norm [recipe.points=40]"}
    models = {
        (table.run.jobs[case.job].training, table.run.jobs[case.baseline_job].training) for case in worst
    }
    assert models
    assert all(mine == baseline for mine, baseline in models)


def test_a_row_with_another_source_model_is_named_and_is_no_control(two_models):
    against = report_tables(read_table(two_models))[-1]
    others = "other, source [recipe.points=20], other, norm [recipe.points=20]"
    assert (
        f"these rows have another source model, and their Δ includes the difference of the models: {others};"
        in against.note
    )
    assert column(against, "Δ Dice")["other, norm [recipe.points=20]"] == "+21.00"
    assert "Δ to the best control" not in against.header


def test_a_row_with_another_source_model_has_no_rank(two_models):
    (board,) = build_leaderboards([two_models])
    assert column(board.views[0], "rank") == {
        "other, norm [recipe.points=20]": "other model", "other, source [recipe.points=20]": "control", "norm": "1",
        "source": "control",
    }  # fmt: skip


def test_a_mean_over_the_images_of_fewer_seeds_is_marked(scored, place):
    table = read_table(scored("source", "norm"))
    assert set(column(report_tables(table)[-1], "image-weighted Dice").values()) == {"60.0", "63.0"}
    missing = next(entry.job for entry in table.run.entries if entry.label == "norm")
    place.record(missing).unlink()
    against = report_tables(read_table(place.run))[-1]
    assert column(against, "image-weighted Dice") == {"source": "60.0", "norm": "63.0*"}
    assert "* over fewer transfers or seeds than other rows" in against.note
