"""What a sample says of a folder: its distance, whether it is of the source's kind, and how much can be learned."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import ttdg
from ttdg.cli import app
from ttdg.data.synthetic.write import write_benchmark
from ttdg.newsite import predict
from ttdg.newsite.inputs import PIXELS, find_files
from ttdg.newsite.run import TOO_FEW
from ttdg.newsite.site_check import LEAST, check_site


@pytest.fixture(scope="module")
def demo():
    return ttdg.load("demo")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The files of nine drawn photographs of a source hospital, and of one that the model never saw."""
    root = write_benchmark(tmp_path_factory.mktemp("drawn"), "fundus", 9, seed=3)
    return {name: sorted((root / name / "images").iterdir()) for name in ("north", "summit")}


@pytest.fixture
def folder(tmp_path, photographs):
    """`folder(drawn, grey, black)`: so many photographs, grey slices and black frames, mixed by their names."""

    def make(drawn=0, grey=0, black=0, hospital="north"):
        site = tmp_path / "site"
        site.mkdir()
        y, x = np.mgrid[:96, :96] / 95
        body = (((y - 0.5) ** 2 + (x - 0.5) ** 2) < 0.16) * (60 + 60 * np.sin(9 * x)) + 20 * y
        for n in range(drawn):
            Image.open(photographs[hospital][n]).save(site / f"{n}a.png")
        for n in range(grey):
            Image.fromarray(np.roll(body, n, 1).astype(np.uint8)).save(site / f"{n}b.png")
        for n in range(black):
            Image.new("RGB", (96, 96)).save(site / f"{n}c.png")
        return site

    return make


def check(model, site):
    return check_site(model, find_files([site], site / "out").images, most_pixels=PIXELS)


@pytest.mark.parametrize(
    ("drawn", "grey", "foreign"), [(9, 0, False), (6, 3, False), (3, 6, True), (0, 5, True)]
)
def test_a_folder_is_foreign_if_most_of_its_images_are(demo, folder, drawn, grey, foreign):
    found = check(demo, folder(drawn, grey))
    assert (found.drift.verdict == "not this kind of image") == foreign
    assert (found.drift.foreign_images, found.learnable) == (grey, drawn)


def test_black_frames_are_neither_described_nor_learnable(demo, folder):
    found = check(demo, folder(drawn=LEAST, black=4))
    assert (found.drift.images, found.drift.foreign_images, found.learnable) == (LEAST, 0, LEAST)


def test_the_distance_of_too_few_describable_images_is_unknown_and_the_command_says_why(
    demo, folder, tmp_path
):
    site = folder(drawn=LEAST - 1, black=4)
    assert check(demo, site).drift is None
    assert check(demo, site).learnable == LEAST - 1
    result = CliRunner().invoke(app, ["drift", "-m", "demo", "-i", str(site), "--device", "cpu"])
    assert f"at least {LEAST} images that can be read" in str(result.exception)
    command = ["predict", "-m", "demo", "-i", str(site), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert TOO_FEW in CliRunner().invoke(app, [*command, "--no-overlays"]).output


def test_the_learnable_images_of_a_large_folder_are_estimated_from_the_sample(demo, folder, monkeypatch):
    from ttdg.newsite import site_check

    monkeypatch.setattr(site_check, "SAMPLE", 9)
    site = folder(drawn=9, black=9)
    assert abs(check(demo, site).learnable - 9) <= 1


def test_without_a_fingerprint_all_images_count_and_none_is_read(disc_model, folder):
    site = folder(drawn=2, black=4)
    images = find_files([site], site / "out").images
    for path in site.iterdir():
        path.unlink()
    found = check_site(disc_model, images, most_pixels=PIXELS)
    assert (found.drift, found.learnable) == (None, 6)


def test_auto_does_not_learn_a_folder_of_mostly_black_frames(demo, folder, tmp_path):
    """There are images enough for a site, but too few that can be learned."""
    outcome = predict(demo, folder(drawn=5, black=15), tmp_path / "out", overlays=False)
    assert outcome.method == "judge"
    assert (
        "5 images that can be learned are too few" in outcome.choice or "like a source site" in outcome.choice
    )
