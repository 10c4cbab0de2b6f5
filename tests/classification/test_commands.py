"""Classification through `ttdg evaluate`, `ttdg bench` and `ttdg report`."""

import csv

import pytest
import yaml
from typer.testing import CliRunner

from ttdg.bench.config import parse_config
from ttdg.bench.folder import RunFolder
from ttdg.bench.plan import plan_jobs
from ttdg.bench.results import read_table
from ttdg.bench.run import run_jobs
from ttdg.bench.run_file import RunPlan, write_run
from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.data import find_sites, load_benchmark, summarise_data
from ttdg.errors import UserError
from ttdg.evaluation.statistics import wilson
from ttdg.newsite.predict import predict
from ttdg.report.comparison import report_tables

RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0, "loss": "ce", "average": 0.0}
EXPERIMENT = {"name": "main", "protocol": "leave-one-out", "methods": ["source", "norm"], "batches": [4]}


@pytest.fixture(scope="module")
def data(shapes):
    return summarise_data(load_benchmark(None, shapes), find_sites(shapes, ["north", "summit"]))


def config(**fields):
    wanted = {"name": "t", "recipe": RECIPE, "experiments": [EXPERIMENT], **fields}
    return parse_config(wanted, "t.yaml")


def test_a_run_scores_every_image_once_and_reports_accuracy(shapes, data, tmp_path, here):
    asked = config()
    planned = plan_jobs(asked, data)
    run = RunPlan("t", "source", 5.0, asked.model_dump(), planned.jobs, planned.entries, str(shapes))
    write_run(tmp_path, run)
    place = RunFolder(tmp_path, shapes, tmp_path / "models")
    ended = run_jobs(dict(run.jobs), place, lambda: here(place))
    assert not ended.failed, ended.failed
    table = read_table(tmp_path)
    scores = table.rows.filter(table.rows["metric"].cast(str) == "accuracy")
    assert len(scores) == 2 * 2 * 8
    assert set(scores["value"]) <= {0.0, 1.0}
    first, against = report_tables(table)
    assert first.title.startswith("main: accuracy")
    assert "Δ accuracy" in against.header
    assert not any("Dice" in text for text in (first.note, against.note, *against.header))


def test_all_stands_for_the_methods_that_apply(data):
    planned = plan_jobs(config(experiments=[EXPERIMENT | {"methods": "all"}]), data)
    methods = {entry.label for entry in planned.entries}
    assert {"source", "tent", "self-training"} <= methods
    assert not {"deynet", "tasd-r", "cbmt"} & methods


def test_a_plan_refuses_a_method_for_segmentation_and_a_dice_loss(data):
    with pytest.raises(UserError, match="'deynet' works on the regions"):
        plan_jobs(config(experiments=[EXPERIMENT | {"methods": ["deynet"]}]), data)
    with pytest.raises(UserError, match="choose the loss 'ce'"):
        plan_jobs(config(recipe=RECIPE | {"loss": "dice+ce"}), data)


def test_evaluate_prints_the_accuracy_with_its_interval_and_writes_a_line_for_each_image(
    model, shapes, tmp_path
):
    save(tmp_path / "model", model.network, model.card)
    command = ["evaluate", "-m", tmp_path / "model", "-d", shapes, "--site", "summit", "-o", tmp_path / "out"]
    result = CliRunner().invoke(
        app, [*map(str, command), "--device", "cpu"], env={"COLUMNS": "160"}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    assert "95 % interval" in result.output
    with (tmp_path / "out" / "records.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8
    assert all(line["accuracy"] in ("0.0", "1.0") for line in lines)


def test_evaluate_refuses_a_method_for_segmentation(model, shapes, tmp_path):
    save(tmp_path / "model", model.network, model.card)
    command = ["evaluate", "-m", tmp_path / "model", "-d", shapes, "--site", "summit", "--method", "deynet"]
    result = CliRunner().invoke(app, [*map(str, command), "--device", "cpu"])
    assert isinstance(result.exception, UserError)
    assert "works on the regions" in str(result.exception)


def test_train_refuses_a_part_for_segmentation_before_it_trains(shapes, tmp_path):
    command = ["train", "-d", shapes, "-o", tmp_path / "model", "--loss", "ce", "--with", "itta,deynet"]
    result = CliRunner().invoke(app, [*map(str, command), "--accelerator", "cpu"])
    assert isinstance(result.exception, UserError)
    assert "'deynet' works on the regions" in str(result.exception)
    assert not (tmp_path / "model").exists()


def test_a_classifier_writes_no_masks(model, shapes, tmp_path):
    with pytest.raises(UserError, match="gives each image a class"):
        predict(model, shapes / "summit", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("right", "count"), [(0, 10), (5, 10), (10, 10), (87, 100)])
def test_wilsons_interval_holds_the_shares_that_a_score_test_accepts(right, count):
    low, high = wilson(right, count)
    for share, accepted in (
        (low + 1e-6, True),
        (high - 1e-6, True),
        (low - 1e-3, False),
        (high + 1e-3, False),
    ):
        if 0 < share < 1:
            score = abs(right / count - share) / (share * (1 - share) / count) ** 0.5
            assert (score <= 1.959964) is accepted


def test_the_shipped_experiments_train_classifiers():
    from pathlib import Path

    for name in ("pacs", "shapes"):
        fields = yaml.safe_load((Path(__file__).parents[2] / "experiments" / f"{name}.yaml").read_text())
        assert (fields["recipe"]["loss"], fields["recipe"]["class_matrix"]) == ("ce", "none")
        assert fields["recipe"]["points"] == 60
