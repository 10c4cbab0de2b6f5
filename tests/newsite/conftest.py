import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from ttdg.newsite import answers, predict

QUICK = {"steps": 1, "folder_steps": 3, "draw": 2, "lr": 1e-2, "momentum": 0.5}


@pytest.fixture
def images(tmp_path, discs):
    """Seven images of different sizes and types, and two files that are no images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, path in enumerate(sorted((discs / "west" / "images").iterdir())[:7]):
        suffix = (".png", ".jpg", ".tif")[number % 3]
        Image.open(path).resize((40 + 9 * number, 30 + 5 * number)).save(folder / (path.stem + suffix))
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "notes.txt").write_text("not an image")
    return folder


ACCESS = Counter()  # (audit event, path) → how often, while WATCHED is a folder
WATCHED: list[Path] = []


def count_access(event, arguments):
    """Count files that are opened and folders that are listed below the watched folder, by any library."""
    if WATCHED and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | Path):
        path = Path(arguments[0])
        if WATCHED[0] in (path, *path.parents):
            ACCESS[event, path] += 1


@pytest.fixture
def access(images):
    """Accesses to the folder of images; an audit hook cannot be removed, so it is switched off instead."""
    if not hasattr(count_access, "installed"):
        sys.addaudithook(count_access)
        count_access.installed = True
    ACCESS.clear()
    WATCHED.append(images)
    yield ACCESS
    WATCHED.clear()


@pytest.fixture
def quick():
    """Options that make self-training quick, and its steps large enough to change masks."""
    return QUICK


@pytest.fixture
def self_training():
    """`self_training(model, images, out, stream, options, **more)` predicts a folder in batches of two."""

    def run(model, images, out, stream=None, options=QUICK, **more):
        return predict(
            model, images, out, method="self-training", options=options, stream=stream, batch=2, **more
        )

    return run


@pytest.fixture
def written():
    """`written(out)`: the content of every file that a user reads."""

    def read(out):
        files = [out / "manifest.csv", *(out / "masks").iterdir(), *(out / "overlays").iterdir()]
        return {str(file.relative_to(out)): file.read_bytes() for file in files}

    return read


@pytest.fixture
def seen(monkeypatch):
    """The labels of every image, in the order in which they are computed."""
    labels_of, found = answers.label_pixels, []

    def spy(logits, size, maps):
        labels, confidence = labels_of(logits, size, maps)
        found.append(labels.copy())
        return labels, confidence

    monkeypatch.setattr(answers, "label_pixels", spy)
    return found


@pytest.fixture
def killed():
    """`killed(work, when)` calls `work` in a forked process and sends it SIGKILL as soon as `when()` is true."""

    def run(work, when):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        deadline = time.monotonic() + 300
        while not when() and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        process.join()
        return process.exitcode

    return run
