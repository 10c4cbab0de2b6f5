"""The figures of the paper for one model: what they show is what the methods answered."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.data import find_sites, load_arrays, load_benchmark
from ttdg.errors import UserError
from ttdg.report.figures.paper import (
    draw_class_matrix,
    draw_site_pairs,
    drawn_hospitals,
    target_of,
    train_with_and_without_w,
)
from ttdg.report.figures.site_answers import comparison_panels, evaluate_with_answers
from ttdg.training import Recipe


@pytest.fixture(scope="module")
def opened(discs):
    return load_benchmark(None, discs), find_sites(discs)


def test_the_dice_beside_an_answer_is_that_of_the_answer(disc_model, opened):
    """Recomputed with numpy from the drawn labels. Of two labels, the most probable is above one half."""
    benchmark, sites = opened
    found = {m: evaluate_with_answers(disc_model, sites["west"], benchmark, m, 4) for m in ("source", "norm")}
    panels = comparison_panels(disc_model, sites["west"], benchmark, found, rows=10)
    assert sorted(panel.case for panel in panels) == [case.name for case in sites["west"].cases]
    for panel in panels:
        for labels, dice in panel.answers.values():
            a, b = labels == 1, panel.truth == 1
            expected = 2 * (a & b).sum() / max((a.sum() + b.sum()), 1)
            assert dice == pytest.approx(expected, abs=1e-5)


def test_rows_go_from_the_worst_to_the_best_of_the_first_method_and_show_their_own_image(disc_model, opened):
    benchmark, sites = opened
    found = {m: evaluate_with_answers(disc_model, sites["west"], benchmark, m, 4) for m in ("norm", "source")}
    panels = comparison_panels(disc_model, sites["west"], benchmark, found, rows=4)
    first = [panel.answers["norm"][1] for panel in panels]
    assert first == sorted(first)
    for panel in panels:
        (case,) = [case for case in sites["west"].cases if case.name == panel.case]
        assert np.array_equal(panel.image, load_arrays([case], benchmark).images[0].movedim(0, -1).numpy())


def test_the_target_is_a_site_the_model_was_not_trained_at(disc_model, opened):
    _, sites = opened
    assert target_of(disc_model, sites, None).name == "south"  # trained at east
    assert target_of(disc_model, sites, "west").name == "west"


def test_only_drawn_hospitals_can_be_drawn_and_they_are_kept(disc_model, tmp_path):
    with pytest.raises(UserError, match="name a benchmark folder"):
        drawn_hospitals(tmp_path, disc_model.card.benchmark, 2)
    kind = load_benchmark("synthetic-polyp")
    first = drawn_hospitals(tmp_path, kind, 2)[1]["north"].cases[0].image
    before = first.stat().st_mtime_ns
    assert drawn_hospitals(tmp_path, kind, 2)[1]["north"].cases[0].image.stat().st_mtime_ns == before


def test_nodes_are_matched_between_two_sites_of_a_model_with_a_prior(disc_model, opened, tmp_path):
    benchmark, sites = opened
    with pytest.raises(UserError, match="two sites, not 1"):
        draw_site_pairs(tmp_path / "m.png", disc_model, [sites["east"]], benchmark)
    with pytest.raises(UserError, match="prior"):
        draw_site_pairs(tmp_path / "m.png", disc_model, [sites["east"], sites["west"]], benchmark)


@pytest.mark.slow
def test_models_with_and_without_w_differ_in_the_class_matrix_alone_and_are_kept(opened, tmp_path):
    benchmark, sites = opened
    sources = {name: sites[name] for name in ("east", "south")}
    recipe = Recipe(
        encoder="light", steps=1, batch=2, loss="ce", universe=1.0, universe_loss="literal", average=0.0
    )
    models = train_with_and_without_w(tmp_path, sources, benchmark, recipe, "cpu")
    recipes = [model.card.recipe for model in models.values()]
    differ = {key for key in recipes[0] | recipes[1] if recipes[0].get(key) != recipes[1].get(key)}
    assert differ == {"class_matrix"}
    said: list[str] = []
    train_with_and_without_w(tmp_path, sources, benchmark, recipe, "cpu", said.append)
    assert not said  # nothing was trained again
    with pytest.raises(UserError, match="trained otherwise"):
        train_with_and_without_w(tmp_path, {"east": sites["east"]}, benchmark, recipe, "cpu")
    path, dice = draw_class_matrix(tmp_path / "w.png", models, sites["west"], benchmark, 2)
    assert Image.open(path).width > 300
    assert set(dice) == {"with W", "w/o W"}
    assert all(0 <= value <= 1 for value in dice.values())


def test_the_commands_draw_from_a_model_and_a_folder(disc_model, discs, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    common = ["-m", str(tmp_path / "model"), "-d", str(discs), "-o", str(tmp_path / "out"), "--device", "cpu"]
    for kind in ("segmentation", "grad-cam"):
        words = [
            "figure",
            kind,
            *common,
            "--site",
            "west",
            "--method",
            "source",
            "--method",
            "norm",
            "--images",
            "2",
        ]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert Image.open(tmp_path / "out" / f"{kind}.png").width > 200
    wrong = CliRunner().invoke(
        app, ["figure", "segmentation", *common, "--site", "wset", "--method", "source"]
    )
    assert "did you mean 'west'" in str(wrong.exception)
    one = CliRunner().invoke(app, ["figure", "class-matrix", *common])
    assert "--model twice" in str(one.exception)
    same = CliRunner().invoke(app, ["figure", "class-matrix", *common, *common[:2]])
    assert "the model 'with W' was trained with --universe-loss repaired" in str(same.exception)


@pytest.mark.slow
def test_matched_nodes_of_the_embedded_model_are_drawn_without_any_data(tmp_path):
    words = ["figure", "matching", "-o", str(tmp_path), "--cases", "2", "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert Image.open(tmp_path / "matching.png").width > 400
