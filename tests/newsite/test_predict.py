import csv
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from ttdg.checkpoints import save
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.newsite.overlay import draw_overlay


@pytest.fixture
def images(tmp_path, discs):
    """Seven images of different sizes and types, and two files that are none."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, path in enumerate(sorted((discs / "west" / "images").iterdir())[:7]):
        suffix = (".png", ".jpg", ".tif")[number % 3]
        Image.open(path).resize((40 + 9 * number, 30 + 5 * number)).save(folder / (path.stem + suffix))
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "notes.txt").write_text("not an image")
    return folder


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
            assert Image.open(tmp_path / "out" / "overlays" / f"{path.stem}.jpg").size == mask.size


def test_one_bad_file_is_set_aside_with_a_reason_and_the_rest_go_on(disc_model, images, tmp_path):
    outcome = predict(disc_model, images, tmp_path / "out")
    assert list(outcome.set_aside) == ["broken.png"]
    row = manifest(outcome)["broken.png"]
    assert row["status"] == "set aside"
    assert "broken.png" in row["reason"]
    assert len(manifest(outcome)) == 8


def test_a_second_call_keeps_what_stands(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", method="tent", batch=2)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "masks").iterdir()}
    again = predict(disc_model, images, tmp_path / "out", method="tent", batch=2)
    assert (again.done, again.kept) == (0, 7)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "masks").iterdir()} == times


@pytest.mark.parametrize("method", ["source", "norm", "tent"])
def test_a_broken_off_stream_ends_as_an_unbroken_one(disc_model, images, tmp_path, method):
    """For a method with memory the finished batches are seen again, so later answers are the same bytes."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = {"lr": 0.05} if method == "tent" else {}
    predict(disc_model, images, whole, method=method, options=options, batch=2)

    def stop(done):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(disc_model, images, broken, method=method, options=options, batch=2, progress=stop)
    resumed = predict(disc_model, images, broken, method=method, options=options, batch=2)
    assert resumed.kept >= 3
    assert resumed.done >= 2
    for path in (whole / "masks").iterdir():
        assert path.read_bytes() == (broken / "masks" / path.name).read_bytes()


def test_another_method_or_a_changed_image_is_answered_anew(disc_model, images, tmp_path):
    predict(disc_model, images, tmp_path / "out", batch=2)
    assert predict(disc_model, images, tmp_path / "out", method="norm", batch=2).done == 7
    first = sorted(images.glob("0*"))[0]
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(first)
    again = predict(disc_model, images, tmp_path / "out", method="norm", batch=2)
    assert (again.done, again.kept) == (2, 5)


def test_a_lost_mask_is_written_again(disc_model, images, tmp_path):
    outcome = predict(disc_model, images, tmp_path / "out", batch=1)
    lost = tmp_path / "out" / manifest(outcome)["00.png"]["mask"]
    lost.unlink()
    assert predict(disc_model, images, tmp_path / "out", batch=1).done == 1
    assert lost.exists()


def test_an_empty_folder_says_so(disc_model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no image"):
        predict(disc_model, tmp_path / "empty", tmp_path / "out")


def test_a_killed_process_resumes_to_the_same_masks(disc_model, images, tmp_path):
    """SIGKILL in the middle: no half-written mask, and the second call completes the folder."""
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


def test_a_method_that_judges_says_what_it_expects_of_every_mask(disc_model, images, tmp_path, monkeypatch):
    """The verdict of each batch lands in the rows of its own images."""
    from ttdg.adaptation import METHODS
    from ttdg.adaptation.adapter import Fixed, Method
    from ttdg.adaptation.judge.method import Verdict
    from ttdg.adaptation.judge.regressor import Prediction

    class Judging(Fixed):
        def __call__(self, batch):
            b = len(batch)
            dice = torch.tensor([[0.5, 0.9]]).repeat(b, 1)
            prediction = Prediction(dice, torch.full((b, 2), 0.2), dice[None])
            self.verdict = Verdict(torch.arange(b) % 2, prediction, ("plain", "mixed"))
            return super().__call__(batch)

    method = Method(Judging, "", "nothing", "EVAL", False, 1, 0, "before", "", "")
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


def test_overlays_leave_the_background_alone_and_outline_structures():
    image = np.full((20, 20, 3), 100, np.uint8)
    labels = np.zeros((20, 20), np.uint8)
    labels[5:15, 5:15] = 1
    drawn = draw_overlay(image, labels)
    assert (drawn[labels == 0] == 100).all()
    assert (drawn[5, 5:15] != drawn[10, 10]).any()
    assert (drawn[10, 10] != 100).any()
    assert (draw_overlay(image, np.zeros_like(labels)) == image).all()
