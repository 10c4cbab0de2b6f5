"""What a later call keeps, replaces, refuses and reports; what the manifest says of it."""

import csv
import hashlib
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

import ttdg
from ttdg.errors import UserError
from ttdg.newsite import default_method, predict
from ttdg.newsite.overlay import COLOURS, add_legend
from ttdg.newsite.run import Run


def rows(out):
    with (out / "manifest.csv").open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def masks(out):
    return {path.name: path.read_bytes() for path in (out / "masks").iterdir()}


@pytest.mark.parametrize(
    ("method", "stream"), [("norm", None), ("tent", "online"), ("self-training", "folder")]
)
def test_an_added_image_changes_no_finished_mask(disc_model, images, tmp_path, discs, quick, method, stream):
    options = {"norm": {}, "tent": {"lr": 0.05}, "self-training": quick}[method]
    common = {"method": method, "options": options, "stream": stream, "batch": 2}
    predict(disc_model, images, tmp_path / "out", **common)
    before = masks(tmp_path / "out")
    (images / "03a.png").write_bytes((discs / "east" / "images" / "05.png").read_bytes())
    outcome = predict(disc_model, images, tmp_path / "out", **common)
    assert (outcome.done, outcome.kept) == (1, 7)
    after = masks(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    statuses = {file: row["status"] for file, row in rows(tmp_path / "out").items()}
    assert statuses["03a.png"] == "segmented"
    assert statuses["00.png"] == "kept"
    again = predict(disc_model, images, tmp_path / "out", again=True, **common)
    assert (again.done, again.kept) == (8, 0)
    predict(disc_model, images, tmp_path / "fresh", **common)
    assert masks(tmp_path / "out") == masks(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "tent"}, "method norm instead of tent"),
        ({"batch": 3}, "batch 2 instead of 3"),
        ({"views": "flips"}, "views plain instead of flips"),
    ],
)
def test_another_run_into_the_same_folder_is_refused(disc_model, images, tmp_path, change, words):
    first = {"method": "norm", "batch": 2}
    predict(disc_model, images, tmp_path / "out", **first)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=words):
        predict(disc_model, images, tmp_path / "out", **first | change)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_a_mask_that_was_changed_by_hand_is_kept_unless_all_are_asked_for_again(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", method="norm")
    mask = tmp_path / "out" / "masks" / "02.png"
    written = mask.read_bytes()
    Image.fromarray(np.full_like(np.asarray(Image.open(mask)), 255)).save(mask)
    edited = mask.read_bytes()
    Image.open(images / "01.jpg").save(images / "00.png")
    outcome = predict(disc_model, images, tmp_path / "out", method="norm")
    assert (outcome.edited, outcome.done) == (("02.tif",), 1)
    assert mask.read_bytes() == edited
    row = rows(tmp_path / "out")["02.tif"]
    assert (row["status"], row["mask_sha256"]) == ("kept", hashlib.sha256(written).hexdigest())
    assert "changed after it was written" in row["reason"]
    predict(disc_model, images, tmp_path / "out", method="norm", again=True)
    assert mask.read_bytes() != edited


def test_a_mask_changed_by_hand_survives_the_resumption_of_its_batch(disc_model, images, tmp_path):
    def stop(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(disc_model, images, tmp_path / "out", method="norm", progress=stop)
    masks_there = sorted((tmp_path / "out" / "masks").iterdir())
    Image.fromarray(np.full((9, 9), 255, np.uint8)).save(masks_there[0])
    edited = masks_there[0].read_bytes()
    masks_there[1].unlink()  # the batch has to be answered again
    outcome = predict(disc_model, images, tmp_path / "out", method="norm")
    assert masks_there[0].read_bytes() == edited
    assert masks_there[1].exists()
    assert outcome.done + outcome.kept == 7


def test_the_mask_of_a_removed_image_is_reported(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", method="norm")
    (images / "00.png").unlink()
    outcome = predict(disc_model, images, tmp_path / "out", method="norm")
    assert outcome.removed == ("00.png",)
    assert rows(tmp_path / "out")["00.png"]["status"] == "input removed"
    assert (tmp_path / "out" / "masks" / "00.png").exists()


def test_unfinished_files_of_a_killed_call_are_swept_and_others_stay(disc_model, images, tmp_path):
    out = tmp_path / "out"
    (out / "masks" / "sub").mkdir(parents=True)
    stray = [
        out / ".journal-abcd1234.jsonl",
        out / "masks" / ".00-abcd_234.png",
        out / "masks/sub/.a b-00000000.png",
    ]
    mine = [out / ".note", out / "masks" / ".hidden.png"]
    for path in (*stray, *mine):
        path.write_bytes(b"x")
    predict(disc_model, images, out)
    assert not any(path.exists() for path in stray)
    assert all(path.exists() for path in mine)


def test_the_manifest_says_what_the_values_mean_and_what_made_them(disc_model, images, tmp_path):
    out = tmp_path / "out"
    predict(disc_model, images, out, method="alpha-bn", options={"alpha": 0.5}, batch=2)
    text = json.loads((out / "manifest.json").read_text())
    assert text["mask_values"] == {"0": "background", "255": "disc"}
    assert text["versions"]["ttdg"] == ttdg.__version__
    run = text["run"]
    assert (run["method"], run["options"], run["model"]) == (
        "alpha-bn",
        {"alpha": 0.5},
        disc_model.card.sha256,
    )
    assert text["manifest_csv_sha256"] == hashlib.sha256((out / "manifest.csv").read_bytes()).hexdigest()
    for file, row in rows(out).items():
        if row["status"] == "segmented":
            assert row["mask_sha256"] == hashlib.sha256((out / row["mask"]).read_bytes()).hexdigest()
            assert row["input_sha256"] == hashlib.sha256((images / file).read_bytes()).hexdigest()
            assert row["version"] == ttdg.__version__


def test_a_legend_shows_the_colour_of_every_label_below_the_image():
    image = np.full((100, 300, 3), 7, np.uint8)
    drawn = add_legend(image, ["background", "disc", "cup"])
    assert (drawn[:100, :300] == image).all()
    below = drawn[100:].reshape(-1, 3).tolist()
    for colour in COLOURS[1:3].tolist():
        assert below.count(colour) >= 100  # a square of 10 pixels
    assert COLOURS[3].tolist() not in below


def test_the_default_method_is_judge_where_its_parts_are(disc_model):
    assert default_method(ttdg.load("demo")) == "judge"
    assert default_method(disc_model) == "source"


def test_a_journal_of_an_earlier_version_is_refused(disc_model, images, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "journal.jsonl").write_text(
        '{"file": "00.png", "status": "done", "mask": "masks/00.png"}\n'
    )
    with pytest.raises(UserError, match="earlier version"):
        predict(disc_model, images, tmp_path / "out")


def test_a_journal_cannot_name_a_mask_outside_the_output_folder(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out")
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"masks/00.png"', '"masks/../../victim.png"'))
    predict(disc_model, images, tmp_path / "out")
    assert not (tmp_path / "victim.png").exists()
    assert rows(tmp_path / "out")["00.png"]["mask"] == "masks/00.png"


def test_overlays_are_drawn_later_from_the_masks_that_were_written_without_them(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "whole", method="norm")
    predict(disc_model, images, tmp_path / "out", method="norm", overlays=False)
    assert not (tmp_path / "out/overlays").exists()
    outcome = predict(disc_model, images, tmp_path / "out", method="norm")
    assert outcome.done == 0
    drawn, expected = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "overlays").iterdir()}
        for name in ("out", "whole")
    )
    assert drawn == expected
    assert predict(disc_model, images, tmp_path / "out", method="norm", overlays=False).done == 0


@pytest.mark.parametrize(
    "odd", [{"expected_low": 0.5}, {"mask": "x" * 3000}, {"overlay": "x" * 3000}, {"mask": "masks/\x00"}]
)
def test_an_odd_entry_of_the_journal_is_answered_again(disc_model, images, tmp_path, odd):
    first = predict(disc_model, images, tmp_path / "out", overlays=False)
    journal = tmp_path / "out" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    changed = next(line for line in lines if line.get("status") == "done")
    changed |= odd
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    again = predict(disc_model, images, tmp_path / "out", overlays=False)
    assert (again.done, again.kept) == (1, first.done - 1)


def test_an_image_that_was_too_large_is_read_again_if_the_limit_changes(disc_model, images, tmp_path):
    pixels = max(math.prod(Image.open(path).size) for path in images.glob("0*"))
    first = predict(disc_model, images, tmp_path / "out", method="tent", most_pixels=pixels - 1)
    assert (first.done, "06.png" in first.set_aside) == (6, True)
    same = predict(disc_model, images, tmp_path / "out", method="tent", most_pixels=pixels - 1)
    assert (same.done, same.kept, same.set_aside) == (0, 6, first.set_aside)
    more = predict(disc_model, images, tmp_path / "out", method="tent", most_pixels=pixels)
    assert (more.done, more.kept, "06.png" in more.set_aside) == (1, 6, False)


def test_a_damaged_mask_is_kept_as_one_that_was_changed_by_hand_and_no_overlay_shows_it(
    disc_model, images, tmp_path
):
    predict(disc_model, images, tmp_path / "out", method="source", overlays=False)
    mask = tmp_path / "out" / "masks" / "02.png"
    mask.write_bytes(mask.read_bytes()[:60])
    outcome = predict(disc_model, images, tmp_path / "out", method="source")
    assert (outcome.edited, outcome.done, outcome.kept) == (("02.tif",), 0, 7)
    assert {path.name for path in (tmp_path / "out/overlays").iterdir()} == {
        f"0{number}.jpg" for number in (0, 1, 3, 4, 5, 6)
    }


def test_a_refusal_names_the_parts_of_another_run_with_short_hashes():
    run = {"model": "m", "parts": {"prior": "a" * 64, "judge": "b" * 64}, "method": "judge"}
    other = Run("m", {}, "source", {}, "plain", 4, "any")
    with pytest.raises(UserError, match=f"parts prior {'a' * 12} and judge {'b' * 12} instead of none"):
        other.check_same({**asdict(other), **run})
