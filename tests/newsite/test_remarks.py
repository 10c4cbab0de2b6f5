"""What a method says of the site reaches the manifest, the result and the console."""

import csv
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ttdg import checkpoints
from ttdg.adaptation import METHODS
from ttdg.adaptation.adapter import Fixed
from ttdg.cli import app
from ttdg.newsite import predict

SENTENCE = "The site looks like home."


class Talking(Fixed):
    """Says something from its second batch on."""

    batches = 0

    def __call__(self, images):
        self.batches += 1
        return super().__call__(images)

    def remarks(self):
        return (SENTENCE,) if self.batches > 1 else ()


@pytest.fixture
def talking(monkeypatch):
    monkeypatch.setitem(
        METHODS, "talking", replace(METHODS["source"], build=lambda network: Talking(network))
    )


def remarks(out):
    with (out / "manifest.csv").open() as file:
        return {row["file"]: row["remark"] for row in csv.DictReader(file)}


def test_a_remark_is_written_beside_the_answers_it_belongs_to(disc_model, images, tmp_path, talking):
    outcome = predict(disc_model, images, tmp_path / "out", method="talking", batch=2)
    said = remarks(tmp_path / "out")
    answered = [file for file in said if file not in ("broken.png", "notes.txt")]
    assert [said[file] for file in answered] == ["", "", *[SENTENCE] * 5]
    assert said["broken.png"] == ""
    assert outcome.remarks == {SENTENCE: 5}


def test_a_second_call_repeats_the_remarks_of_the_answers_it_keeps(disc_model, images, tmp_path, talking):
    for _ in range(2):
        outcome = predict(disc_model, images, tmp_path / "out", method="talking", batch=2)
    assert (outcome.done, outcome.kept) == (0, 7)
    assert outcome.remarks == {SENTENCE: 5}


def test_a_method_without_remarks_leaves_them_empty(disc_model, images, tmp_path):
    outcome = predict(disc_model, images, tmp_path / "out", method="norm", batch=2)
    assert outcome.remarks == {}
    assert set(remarks(tmp_path / "out").values()) == {""}


def test_the_command_prints_each_remark_once_with_the_number_of_its_images(
    disc_model, images, tmp_path, talking, monkeypatch
):
    monkeypatch.setattr(checkpoints, "load", lambda *_: disc_model)
    arguments = [
        "predict",
        "-m",
        "a-model",
        "-i",
        str(images),
        "-o",
        str(tmp_path / "out"),
        "--method",
        "talking",
        "--batch",
        "2",
    ]
    result = CliRunner().invoke(app, arguments)
    assert f"{SENTENCE} (5 of 7 images)" in result.stdout
    assert result.stdout.count(SENTENCE) == 1
