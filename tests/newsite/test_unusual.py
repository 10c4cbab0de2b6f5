"""Frames that are black, constant, noise or of another kind do not change the answers to other images."""

import csv

import numpy as np
import pytest
from PIL import Image

import ttdg
from ttdg.data import load_arrays, open_folder
from ttdg.data.synthetic.write import write_benchmark
from ttdg.data.unlabelled import unusual_kind
from ttdg.newsite import predict

RNG = np.random.default_rng(0)
FRAMES = {
    "black": np.zeros((40, 48, 3), np.uint8),
    "almost black": RNG.integers(0, 3, (40, 48, 3), np.uint8),
    "white": np.full((40, 48, 3), 255, np.uint8),
    "green": np.tile(np.array([0, 200, 0], np.uint8), (40, 48, 1)),
    "noise": RNG.integers(0, 256, (40, 48, 3), np.uint8),
    "grey noise": np.repeat(RNG.integers(0, 256, (40, 48, 1), np.uint8), 3, 2),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("size", [32, 96, 352])
def test_frames_without_content_are_recognised(frame, size):
    if "noise" in frame:
        pixels = RNG.integers(0, 256, (2 * size, 2 * size, 1 if "grey" in frame else 3), np.uint8)
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    else:
        pixels = FRAMES[frame]
    image = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((size, size))).transpose(2, 0, 1)
    assert unusual_kind(image)


def test_the_kind_names_what_is_wrong():
    def kind(pixels):
        return unusual_kind(np.ascontiguousarray(pixels[:32, :32].transpose(2, 0, 1)))

    assert kind(FRAMES["black"]) == "the frame is black"
    assert kind(FRAMES["green"]) == "the frame has one colour"
    assert kind(FRAMES["noise"]) == "the frame is noise"


@pytest.mark.parametrize("variant", ["fundus", "polyp"])
def test_no_drawn_photograph_is_taken_for_an_empty_frame(variant, tmp_path):
    root = write_benchmark(tmp_path, variant, 3)
    benchmark = ttdg.data.load_benchmark(None, root)
    for site in sorted(path for path in root.iterdir() if path.is_dir()):
        for image in load_arrays(open_folder(site / "images"), benchmark).images.numpy():
            assert unusual_kind(image) == ""
            assert unusual_kind(image // 8) == "", "a dark photograph"


def masks(out):
    return {path.name: path.read_bytes() for path in (out / "masks").iterdir()}


@pytest.mark.parametrize(
    ("method", "stream"), [("norm", None), ("tent", "online"), ("self-training", "folder")]
)
def test_empty_frames_change_no_other_answer_and_are_flagged(
    disc_model, images, tmp_path, quick, method, stream
):
    options = {"norm": {}, "tent": {"lr": 0.05}, "self-training": quick}[method]
    common = {"method": method, "options": options, "stream": stream, "batch": 2}
    predict(disc_model, images, tmp_path / "clean", **common)
    for number, pixels in enumerate(FRAMES.values()):
        Image.fromarray(pixels).save(images / f"0{number}x.png")
    outcome = predict(disc_model, images, tmp_path / "out", **common)
    clean, answered = masks(tmp_path / "clean"), masks(tmp_path / "out")
    assert {name: answered[name] for name in clean} == clean
    assert len(answered) == len(clean) + len(FRAMES)
    assert outcome.unusual.keys() == {f"0{number}x.png" for number in range(len(FRAMES))}
    with outcome.manifest.open() as file:
        flagged = {row["file"] for row in csv.DictReader(file) if row["unusual"]}
    assert flagged == outcome.unusual.keys()
    again = predict(disc_model, images, tmp_path / "out", **common)
    assert (again.done, again.unusual) == (0, outcome.unusual)


def test_one_black_frame_leaves_its_neighbours_to_judge(tmp_path):
    """Four drawn images of a shifted hospital with the demo model, with and without a black frame among them."""
    folder = write_benchmark(tmp_path / "data", "fundus", 3) / "summit" / "images"
    model = ttdg.load("demo")
    assert predict(model, folder, tmp_path / "clean", overlays=False).method == "judge"
    Image.new("RGB", (96, 96)).save(folder / "000-black.png")
    predict(model, folder, tmp_path / "out", overlays=False)
    clean, answered = masks(tmp_path / "clean"), masks(tmp_path / "out")
    assert {name: answered[name] for name in clean} == clean


@pytest.mark.parametrize(
    "method",
    [
        "norm",
        "tent",
        "judge",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dua", "cotta", "self-training")),
    ],
)
def test_an_image_of_another_modality_changes_no_other_answer_and_is_flagged(tmp_path, method, quick):
    """Drawn colour images of a shifted hospital with the demo model, and a grey slice among them."""
    folder = write_benchmark(tmp_path / "data", "fundus", 3) / "summit" / "images"
    common = {
        "method": method,
        "options": quick if method == "self-training" else {},
        "overlays": False,
        "batch": 3,
    }
    clean = predict(ttdg.load("demo"), folder, tmp_path / "clean", **common)
    assert clean.unusual == {}
    y, x = np.mgrid[:96, :96] / 95
    body = (((y - 0.5) ** 2 + (x - 0.5) ** 2) < 0.16) * (60 + 60 * np.sin(9 * x)) + 20 * y
    Image.fromarray(body.astype(np.uint8)).save(folder / "000-slice.png")
    outcome = predict(ttdg.load("demo"), folder, tmp_path / "out", **common)
    assert list(outcome.unusual.items()) == [
        ("000-slice.png", "another kind of image than those of the source")
    ]
    clean, answered = masks(tmp_path / "clean"), masks(tmp_path / "out")
    assert {name: answered[name] for name in clean} == clean
    assert len(answered) == len(clean) + 1
