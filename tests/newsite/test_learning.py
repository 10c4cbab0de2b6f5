"""Methods that learn a site: the streams of a folder, their progress and their memory."""

import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from ttdg.adaptation import METHODS, Assessment, adapt
from ttdg.adaptation.adapter import Fixed, Method
from ttdg.data import open_folder
from ttdg.data.loading import stream as read_stream
from ttdg.data.unlabelled import images as reading
from ttdg.errors import UserError
from ttdg.newsite import predict

STREAMS = ("folder", "online")


def batches(images, model):
    cases = [case for case in open_folder(images) if case.name != "broken"]
    return [loaded.batch.images for loaded in read_stream(cases, model.card.benchmark, 2)], cases


def masks_by_hand(logits, cases):
    """The masks of some logits at the size of their image files."""
    masks = {}
    for answer, case in zip(torch.cat(logits), cases, strict=True):
        width, height = Image.open(case.image).size
        resized = F.interpolate(answer[None], (height, width), mode="bilinear", align_corners=False)
        masks[case.name] = 255 * resized[0].argmax(0).byte().numpy()
    return masks


def assert_masks(out, expected):
    for name, mask in expected.items():
        assert np.array_equal(np.asarray(Image.open(out / "masks" / f"{name}.png")), mask)
    assert len({mask.mean() for mask in expected.values()}) > 1, "masks that are all alike show nothing"


def test_a_method_that_learns_a_site_learns_the_folder_first_by_default(
    disc_model, images, tmp_path, self_training, quick
):
    outcome = self_training(disc_model, images, tmp_path / "out")
    site, cases = batches(images, disc_model)
    adapter = adapt(disc_model, "self-training", **quick)
    adapter.learn(iter(site))
    assert_masks(tmp_path / "out", masks_by_hand([adapter.predict_frozen(batch) for batch in site], cases))
    assert (outcome.stream, outcome.done, list(outcome.set_aside)) == (
        "folder",
        7,
        ["notes.txt", "broken.png"],
    )


def test_online_it_answers_each_batch_after_its_own_steps(disc_model, images, tmp_path, self_training, quick):
    outcome = self_training(disc_model, images, tmp_path / "out", "online")
    site, cases = batches(images, disc_model)
    adapter = adapt(disc_model, "self-training", **quick)
    assert_masks(tmp_path / "out", masks_by_hand([adapter(batch) for batch in site], cases))
    assert outcome.stream == "online"


def test_a_folder_takes_two_passes_of_a_method_that_does_not_learn_a_site(disc_model, images, tmp_path):
    steps = []
    outcome = predict(
        disc_model, images, tmp_path / "out", method="tent", options={"lr": 0.05}, stream="folder", batch=2,
        learning=lambda *call: steps.append(call),
    )  # fmt: skip
    site, cases = batches(images, disc_model)
    adapter = adapt(disc_model, "tent", lr=0.05)
    for batch in site:
        adapter(batch)
    with torch.no_grad():
        assert_masks(tmp_path / "out", masks_by_hand([adapter.network(batch) for batch in site], cases))
    assert outcome.stream == "folder"
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert predict(disc_model, images, tmp_path / "default", method="tent").stream == "online"


def test_a_method_without_memory_answers_both_streams_alike_and_reads_each_image_once(
    disc_model, images, tmp_path, access, written
):
    predict(disc_model, images, tmp_path / "folder", method="norm", stream="folder")
    assert access["open", images / "00.png"] == 1
    predict(disc_model, images, tmp_path / "online", method="norm", stream="online")
    assert written(tmp_path / "folder") == written(tmp_path / "online")


def test_a_folder_is_read_once_to_learn_and_once_to_answer(
    disc_model, images, tmp_path, access, self_training
):
    self_training(disc_model, images, tmp_path / "out")
    readable = [path for path in images.iterdir() if path.suffix != ".txt"]
    assert {path: access["open", path] for path in readable} == dict.fromkeys(readable, 2)


@pytest.mark.parametrize("stream", STREAMS)
def test_the_images_in_memory_do_not_grow_with_the_folder(
    disc_model, tmp_path, monkeypatch, stream, self_training
):
    (tmp_path / "images").mkdir()
    for number in range(24):
        Image.new("RGB", (40, 40), (10 * number, 90, 30)).save(tmp_path / "images" / f"{number:02}.png")
    read, alive, most = reading._read, [], []

    def tracked(*arguments):
        image = read(*arguments)
        alive.append(weakref.ref(image))
        most.append(sum(reference() is not None for reference in alive))
        return image

    monkeypatch.setattr(reading, "_read", tracked)
    self_training(disc_model, tmp_path / "images", tmp_path / "out", stream, workers=1)
    assert max(most) <= 2 * 2 + 2 * 2 + 1  # two batches ahead, two in use, one being read


def test_learning_reports_its_steps_before_the_files_are_answered(
    disc_model, images, tmp_path, self_training
):
    calls = []
    self_training(
        disc_model, images, tmp_path / "out", progress=lambda *call: calls.append(("files", *call)),
        learning=lambda *call: calls.append(("steps", *call)),
    )  # fmt: skip
    assert calls[0] == ("files", 0, 8)
    assert calls[1:4] == [("steps", 1, 3), ("steps", 2, 3), ("steps", 3, 3)]
    assert [kind for kind, *_ in calls[4:]] == ["files"] * 4
    assert calls[-1] == ("files", 8, 8)


def test_the_assessment_of_images_that_were_learned_is_not_written_beside_the_answers(
    disc_model, images, tmp_path, monkeypatch
):
    """A self-assessing method without frozen predictions has assessed another batch."""

    class Judging(Fixed):
        def assessment(self):
            return Assessment(("plain",) * 2, torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1]))

    monkeypatch.setitem(
        METHODS,
        "judging",
        Method(Judging, "", "nothing", "EVAL", True, 1, 0, "before", "source-free", "", ""),
    )
    (images / "06.png").unlink()
    common = {"method": "judging", "batch": 2}
    assert len(predict(disc_model, images, tmp_path / "online", **common).expected_dice) == 6
    assert not predict(disc_model, images, tmp_path / "out", stream="folder", **common).expected_dice


def test_an_unknown_stream_is_refused_before_anything_is_written(disc_model, images, tmp_path, self_training):
    with pytest.raises(UserError, match="'online' or 'folder', not 'offline'"):
        self_training(disc_model, images, tmp_path / "out", "offline")
    assert not (tmp_path / "out").exists()
