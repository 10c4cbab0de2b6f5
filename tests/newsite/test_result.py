"""What a call says of its files: a few names in a sentence, notes, and what was not learned or not written."""

import re
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from ttdg.adaptation import METHODS
from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.newsite import predict
from ttdg.newsite.journal import JournalEntry
from ttdg.newsite.result import NAMED, NOT_LEARNED, by_reason, count_unlearned, name_some
from ttdg.newsite.run import OF_BATCHES, OF_FOLDER, idle_options_note


@given(count=st.integers(1, 50))
def test_a_sentence_names_a_few_files_and_counts_the_others(count):
    files = [f"{n}.png" for n in range(count)]
    text = name_some(files)
    named = re.findall(r"\d+\.png", text)
    others = re.search(r"and (\d+) others$", text)
    assert named == files[: len(named)]
    assert NAMED <= len(named) <= NAMED + 1 or named == files
    assert len(named) + (int(others[1]) if others else 0) == count
    assert not text.endswith("and 1 others")


@given(st.dictionaries(st.text(), st.sampled_from(["black", "noise", ""])))
def test_files_of_one_reason_are_together_in_their_order(files):
    groups = by_reason(files)
    assert {file: reason for reason, names in groups.items() for file in names} == files
    assert all(names == [file for file in files if files[file] == reason] for reason, names in groups.items())


def entry(unusual, status="done"):
    return JournalEntry("a.png", status, unusual=unusual)


def test_it_is_said_if_no_image_was_learned_and_only_then():
    aside = entry("", "set aside")
    assert count_unlearned([entry("black"), entry("noise"), aside]) == {NOT_LEARNED: 2}
    assert count_unlearned([entry("black"), entry("")]) == {}
    assert count_unlearned([aside]) == {}
    assert count_unlearned([]) == {}


@pytest.mark.parametrize(("method", "said"), [("tent", True), ("source", False)])
def test_a_folder_of_black_frames_is_not_learned(disc_model, tmp_path, method, said):
    """A method that learns nothing has nothing to say."""
    (tmp_path / "site").mkdir()
    for n in range(3):
        Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "site" / f"{n}.png")
    for _ in range(2):
        outcome = predict(disc_model, tmp_path / "site", tmp_path / "out", method=method)
        assert outcome.remarks == ({NOT_LEARNED: 3} if said else {})


@pytest.mark.parametrize("method", METHODS)
def test_an_option_is_idle_in_at_most_one_stream(method):
    options = METHODS[method].options
    for name in options:
        notes = [idle_options_note(method, stream, [name]) for stream in ("online", "folder")]
        learns_sites = any(other in options for other in OF_FOLDER)
        assert [bool(note) for note in notes] == [
            learns_sites and name in OF_FOLDER,
            learns_sites and name in OF_BATCHES,
        ]
        assert all(name in note for note in notes if note)


def test_a_note_names_the_idle_options_and_those_that_count():
    assert idle_options_note("self-training", None, ["steps", "lr"]).startswith(
        "self-training: steps does nothing"
    )
    assert "folder_steps" in idle_options_note("self-training", "folder", ["steps"])
    assert idle_options_note("self-training", "online", ["steps"]) == ""
    assert idle_options_note("auto", None, ["steps"]) == ""


def test_the_command_prints_the_note_and_goes_on(disc_model, images, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    options = [word for name in ("steps=1", "folder_steps=1", "draw=2") for word in ("--set", name)]
    command = ["predict", "-m", str(tmp_path / "model"), "-i", str(images), "-o", str(tmp_path / "out"), "--device",
               "cpu", "--method", "self-training", *options]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 3, result.output
    assert "steps does nothing in the stream folder, where folder_steps counts" in result.stderr


def test_kept_answers_without_probability_maps_are_counted(disc_model, images, tmp_path):
    common = {"method": "source", "overlays": False}
    assert predict(disc_model, images, tmp_path / "out", **common).without_maps == 0
    assert predict(disc_model, images, tmp_path / "out", probabilities=True, **common).without_maps == 7
    full = predict(disc_model, images, tmp_path / "out", probabilities=True, again=True, **common)
    assert (full.done, full.without_maps) == (7, 0)
    (tmp_path / "out/probabilities/00-1.png").unlink()
    assert predict(disc_model, images, tmp_path / "out", probabilities=True, **common).without_maps == 1


def test_maps_and_overlays_of_an_earlier_answer_do_not_stay_beside_a_new_one(
    disc_model, images, discs, tmp_path
):
    out = tmp_path / "out"
    predict(disc_model, images, out, method="source", probabilities=True)
    shutil.copy(discs / "east" / "images" / "05.png", images / "00.png")
    predict(disc_model, images, out, method="source", overlays=False)
    assert not list(out.glob("*/00*.jpg"))
    assert not list((out / "probabilities").glob("00-*"))
    assert (out / "overlays/01.jpg").exists()
    assert (out / "probabilities/01-1.png").exists()
    assert predict(disc_model, images, out, method="source", probabilities=True).without_maps == 1


def test_a_mask_that_no_row_of_the_manifest_names_is_named_by_the_command(disc_model, images, tmp_path):
    """One belongs to a file that is damaged now; the other to a file that was gone when all were answered again."""
    save(tmp_path / "model", disc_model.network, disc_model.card)
    command = ["predict", "-m", str(tmp_path / "model"), "-i", str(images), "-o", str(tmp_path / "out"), "--device",
               "cpu", "--method", "source"]  # fmt: skip
    assert "no row of" not in CliRunner().invoke(app, command).output
    (images / "00.png").write_bytes(b"no image")
    (images / "01.jpg").unlink()
    result = CliRunner().invoke(app, [*command, "--again"])
    assert "that no row of manifest.csv names: masks/00.png, masks/01.png" in result.output
