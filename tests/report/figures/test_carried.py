"""The figure of carried labels: which images it shows, and what it says of them."""

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.data import Arrays
from ttdg.data.synthetic.write import write_benchmark
from ttdg.report.figures.carried import CarriedSite
from ttdg.report.figures.panels import draw_panels


def a_site(changes: list[int], unsure: list[bool], masks: bool = True) -> CarriedSite:
    """Images in which a number of pixels change from background to structure; the truth is the structure there."""
    count = len(changes)
    before, carried = torch.zeros(2, count, 4, 4, dtype=torch.long)
    for row, pixels in enumerate(changes):
        carried[row].view(-1)[:pixels] = 1
    pixels = torch.randint(256, (count, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    images = Arrays(
        pixels.to(torch.uint8),
        carried.to(torch.uint8) if masks else None,
        tuple(str(i) for i in range(count)),
    )
    dice = {"source": torch.zeros(count), "carried": torch.arange(count) / 10} if masks else {}
    labels = {"source": before, "carried": carried}
    return CarriedSite(images, labels, dice, torch.linspace(0.1, 0.9, count), torch.tensor(unsure))


def test_the_unsure_images_with_the_largest_change_are_shown():
    site = a_site([3, 9, 16, 5, 5], [True, True, False, True, True])
    assert site.most_changed(3) == [1, 3, 4]
    assert site.most_changed(9) == [1, 3, 4, 0]


def test_the_mean_dice_is_that_of_the_unsure_images():
    site = a_site([1, 1, 1], [True, False, True])
    assert site.mean_dice() == pytest.approx({"source": 0.0, "carried": 0.1})


@pytest.mark.parametrize("masks", [True, False])
def test_a_panel_shows_both_labels_and_the_truth_if_it_is_known(masks, tmp_path):
    site = a_site([1, 8], [True, True], masks)
    panel = site.panel(1)
    assert (panel.truth is not None) is masks
    assert list(panel.answers) == ["source", "carried"]
    mask, dice = panel.answers["carried"]
    assert mask.sum() == 8
    assert dice == (pytest.approx(0.1) if masks else None)
    assert "90" in panel.note
    path = draw_panels(tmp_path / "carried.png", [panel], ["background", "structure"])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_command_draws_a_site_with_and_without_masks(tmp_path):
    data = write_benchmark(tmp_path / "data", "fundus", 4, seed=7)
    arguments = ["prior", "carry", "demo", str(data), "--site", "summit", "--images", "2", "--device", "cpu"]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "one")])
    assert result.exit_code == 0, result.output
    assert "mean Dice over the 2 less sure images: source" in result.stdout
    shutil.rmtree(data / "summit" / "masks")
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "two"), "--set", "carrier=pairwise"])
    assert result.exit_code == 0, result.output
    assert "Dice" not in result.stdout
    one, two = (Path(tmp_path / name / "carried.png").read_bytes() for name in ("one", "two"))
    assert one != two
