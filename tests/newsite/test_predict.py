import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from ttdg.checkpoints import save
from ttdg.data.unlabelled import images as reading
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.answers import label_pixels
from ttdg.newsite.overlay import draw_overlay


def manifest(outcome):
    with outcome.manifest.open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def test_masks_come_in_each_images_own_size_with_the_benchmarks_grey_values(disc_model, images, tmp_path):
    outcome = predict(disc_model, images, tmp_path / "out", method="norm")
    assert outcome.done == 7
    for path in images.iterdir():
        if path.suffix in (".png", ".jpg", ".tif") and path.stem != "broken":
            mask = Image.open(tmp_path / "out" / "masks" / f"{path.stem}.png")
            assert mask.size == Image.open(path).size
            assert set(np.unique(np.asarray(mask))) <= {0, 255}
            shown = Image.open(tmp_path / "out" / "overlays" / f"{path.stem}.jpg")
            assert shown.width >= mask.width
            assert shown.height > mask.height  # a legend below


def test_one_bad_file_is_set_aside_with_a_reason_and_the_rest_go_on(disc_model, images, tmp_path):
    outcome = predict(disc_model, images, tmp_path / "out")
    assert sorted(outcome.set_aside) == ["broken.png", "notes.txt"]
    row = manifest(outcome)["broken.png"]
    assert row["status"] == "set aside"
    assert "broken.png" in row["reason"]
    assert len(manifest(outcome)) == 9


def test_a_second_call_keeps_valid_masks(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", method="tent", batch=2)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "masks").iterdir()}
    again = predict(disc_model, images, tmp_path / "out", method="tent", batch=2)
    assert (again.done, again.kept) == (0, 7)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "masks").iterdir()} == times


@pytest.mark.parametrize("method", ["source", "norm", "tent"])
def test_an_interrupted_run_resumes_to_the_same_masks(disc_model, images, tmp_path, method):
    """A method with memory processes the finished batches again, so that later masks are byte-identical."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = {"lr": 0.05} if method == "tent" else {}
    predict(disc_model, images, whole, method=method, options=options, batch=2)

    def stop(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(disc_model, images, broken, method=method, options=options, batch=2, progress=stop)
    resumed = predict(disc_model, images, broken, method=method, options=options, batch=2)
    assert resumed.kept >= 3
    assert resumed.done >= 2
    for path in (whole / "masks").iterdir():
        assert path.read_bytes() == (broken / "masks" / path.name).read_bytes()


def test_a_changed_image_is_answered_anew_and_the_others_are_kept(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", method="norm", batch=2)
    Image.open(images / "01.jpg").save(images / "00.png")
    again = predict(disc_model, images, tmp_path / "out", method="norm", batch=2)
    assert (again.done, again.kept) == (1, 6)


def test_a_lost_mask_is_written_again(disc_model, images, tmp_path):
    outcome = predict(disc_model, images, tmp_path / "out", batch=1)
    lost = tmp_path / "out" / manifest(outcome)["00.png"]["mask"]
    lost.unlink()
    assert predict(disc_model, images, tmp_path / "out", batch=1).done == 1
    assert lost.exists()


def test_an_empty_folder_is_refused_before_anything_is_written(disc_model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no image"):
        predict(disc_model, tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_killed_process_resumes_to_the_same_masks(disc_model, images, tmp_path, killed):
    """SIGKILL in the middle: no half-written mask, and the second call completes the folder."""
    out, norm = tmp_path / "out", {"method": "norm", "batch": 1}
    killed(lambda: predict(disc_model, images, out, **norm), lambda: list(out.glob("masks/0*.png")))
    found = list((out / "masks").glob("0*.png"))
    assert found
    for mask in found:
        Image.open(mask).load()
    assert "broken.png" in predict(disc_model, images, out, **norm).set_aside
    predict(disc_model, images, tmp_path / "whole", **norm)
    for path in (tmp_path / "whole" / "masks").iterdir():
        assert path.read_bytes() == (out / "masks" / path.name).read_bytes()


@pytest.mark.slow
def test_a_killed_command_resumes_to_the_same_masks(disc_model, images, tmp_path):
    """The same with two processes of their own, as a user starts them."""
    save(tmp_path / "model", disc_model.network, disc_model.card)
    command = [sys.executable, "-m", "ttdg", "predict", "-m", str(tmp_path / "model"), "-i", str(images),
               "-o", str(tmp_path / "out"), "--batch", "1", "--method", "norm", "--device", "cpu"]  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("masks/0*.png")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for mask in (tmp_path / "out" / "masks").glob("0*.png"):
        Image.open(mask).load()
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 3, result.stderr  # broken.png was set aside
    assert "set aside broken.png" in result.stderr
    predict(disc_model, images, tmp_path / "whole", method="norm", batch=1)
    for path in (tmp_path / "whole" / "masks").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / "masks" / path.name).read_bytes()


def test_a_self_assessing_method_gives_the_expected_dice_of_every_mask(
    disc_model, images, tmp_path, monkeypatch
):
    """The assessment of each batch is written to the rows of its images."""
    from ttdg.adaptation import METHODS, Assessment
    from ttdg.adaptation.adapter import Fixed, Method

    class Judging(Fixed):
        def __call__(self, batch):
            self.count = len(batch)
            return super().__call__(batch)

        def assessment(self):
            odd = torch.arange(self.count) % 2 == 1
            choices = tuple("mixed" if other else "plain" for other in odd)
            dice = torch.where(odd, 0.9, 0.5)
            return Assessment(choices, dice, torch.full((self.count,), 0.2), dice - 0.1)

    method = Method(Judging, "", "nothing", "EVAL", False, 1, 0, "before", "source-free", "", "")
    monkeypatch.setitem(METHODS, "judging", method)
    outcome = predict(disc_model, images, tmp_path / "out", method="judging", batch=2)
    found = manifest(outcome)
    assert set(outcome.expected_dice) == {file for file, row in found.items() if row["mask"]}
    rows = [row for row in found.values() if row["mask"]]
    assert {row["reading"] for row in rows} == {"plain", "mixed"}
    for row in rows:
        low, middle, high = (float(row[f"expected_{name}"]) for name in ("low", "dice", "high"))
        assert (middle, low) == pytest.approx((0.5, 0.3) if row["reading"] == "plain" else (0.9, 0.7))
        assert high <= 1
        assert float(row["expected_unadapted"]) == pytest.approx(middle - 0.1)


@pytest.mark.parametrize("method", ["source", "tent"])
def test_the_folder_is_listed_once_and_each_image_is_opened_once(
    disc_model, images, tmp_path, access, method
):
    """A 16-bit colour TIFF is decoded by another library; it counts, too."""
    tifffile.imwrite(images / "16bit.tif", np.arange(4800, dtype=np.uint16).reshape(40, 40, 3))
    for _ in range(2):  # a second call resumes
        access.clear()
        predict(disc_model, images, tmp_path / "out", method=method, batch=2)
        readable = [path for path in images.iterdir() if path.suffix != ".txt"]
        assert {path: access["open", path] for path in readable} == dict.fromkeys(readable, 1)
        listings = access["os.listdir", images] + access["os.scandir", images]
        assert listings == 1 + 1  # one of them by this test


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("tnet", {}, "did you mean 'tent'"),
        ("tent", {"lrr": 1}, "did you mean 'lr'"),
        ("tent", {"lr": Path()}, "must be of type float"),
        ("judge", {}, "part"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(
    disc_model, images, tmp_path, method, options, words
):
    with pytest.raises(UserError, match=words):
        predict(disc_model, images, tmp_path / "out", method=method, options=options)
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_is_a_file_is_refused(disc_model, images, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(UserError, match="choose another output folder"):
            predict(disc_model, images, out)


def test_progress_gives_the_processed_and_the_total_number_of_files(disc_model, images, tmp_path):
    calls = []
    predict(disc_model, images, tmp_path / "out", batch=3, progress=lambda *call: calls.append(call))
    assert calls[0] == (0, 8)
    assert calls[-1] == (8, 8)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_overlays_of_large_images_are_scaled_down_and_masks_are_not(
    disc_model, images, tmp_path, monkeypatch
):
    whole = predict(disc_model, images, tmp_path / "whole")
    monkeypatch.setattr(reading, "LARGEST_PICTURE", 50)
    predict(disc_model, images, tmp_path / "out")
    for row in manifest(whole).values():
        if row["mask"]:
            mask = (tmp_path / "out" / row["mask"]).read_bytes()
            assert mask == (tmp_path / "whole" / row["mask"]).read_bytes()
            full = Image.open(tmp_path / "whole" / row["overlay"]).size
            small = Image.open(tmp_path / "out" / row["overlay"]).size
            assert small == full if full[0] <= 50 else small[0] == 50


def test_images_are_masked_upright(disc_model, tmp_path):
    (tmp_path / "images").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "images" / "a.jpg", exif=exif)
    row = manifest(predict(disc_model, tmp_path / "images", tmp_path / "out"))["a.jpg"]
    assert (row["width"], row["height"]) == ("20", "30")
    assert Image.open(tmp_path / "out" / row["mask"]).size == (20, 30)


def test_overlays_leave_the_background_alone_and_outline_structures():
    image = np.full((20, 20, 3), 100, np.uint8)
    labels = np.zeros((20, 20), np.uint8)
    labels[5:15, 5:15] = 1
    drawn = draw_overlay(image, labels)
    assert (drawn[labels == 0] == 100).all()
    assert (drawn[5, 5:15] != drawn[10, 10]).any()
    assert (drawn[10, 10] != 100).any()
    assert (draw_overlay(image, np.zeros_like(labels)) == image).all()


def test_a_journal_with_bytes_that_are_no_text_loses_only_those_lines(disc_model, images, tmp_path):
    first = predict(disc_model, images, tmp_path / "out", method="norm")
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_bytes(b"\xff\xfe{broken\n" + journal.read_bytes())
    again = predict(disc_model, images, tmp_path / "out", method="norm")
    assert (again.done, again.kept) == (0, first.done)


def test_other_views_answer_again_and_the_same_views_do_not(disc_model, images, tmp_path):
    assert predict(disc_model, images, tmp_path / "out", method="norm").done == 7
    assert predict(disc_model, images, tmp_path / "out", method="norm", views="flips", again=True).done == 7
    assert predict(disc_model, images, tmp_path / "out", method="norm", views="flips").done == 0


def test_probability_maps_are_the_softmax_at_the_size_of_the_image():
    logits = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps = np.empty((2, 40, 30), np.uint8)
    labels, _ = label_pixels(logits, (40, 30), maps)
    large = torch.nn.functional.interpolate(logits[None], (40, 30), mode="bilinear", align_corners=False)[0]
    np.testing.assert_allclose(maps, large.softmax(0)[1:].numpy() * 255, atol=0.51)
    assert ((maps > 128).any(0) <= (labels > 0)).all()


def test_probability_maps_are_written_on_request(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", probabilities=True, overlays=False)
    maps = sorted((tmp_path / "out/probabilities").iterdir())
    assert [path.name for path in maps] == [f"{n:02}-1.png" for n in range(7)]
    for path in maps:
        values = np.asarray(Image.open(path))
        mask = np.asarray(Image.open(tmp_path / "out/masks" / path.name.replace("-1", "")))
        assert ((values > 128) <= (mask > 0)).all()
        assert ((values < 127) <= (mask == 0)).all()
