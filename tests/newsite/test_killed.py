"""What a call that is killed between a mask and its line leaves to the log and to the next call."""

import signal
import time

import numpy as np
import pytest
from PIL import Image

from ttdg.newsite import predict
from ttdg.newsite.audit import AuditLog, verify_audit

MR = "1.2.840.10008.5.1.4.1.1.4"


@pytest.fixture
def killed_before_its_line(monkeypatch, killed):
    """`killed_before_its_line(work, out, batches)`: no line of the log names the masks of the last batch."""

    def run(work, out, batches):
        add, seen = AuditLog.add_answers, []

        def wait(self, entries, *more):
            seen.append(entries)
            if len(seen) == batches:
                (out / "waiting").touch()
                time.sleep(600)
            add(self, entries, *more)

        with monkeypatch.context() as patch:
            patch.setattr(AuditLog, "add_answers", wait)
            assert killed(work, (out / "waiting").exists) == -signal.SIGKILL

    return run


def test_a_killed_run_leaves_a_note_and_no_problem(disc_model, discs, tmp_path, killed_before_its_line):
    out, images = tmp_path / "out", discs / "west" / "images"
    common = {"method": "norm", "batch": 2, "overlays": False}
    killed_before_its_line(lambda: predict(disc_model, images, out, **common), out, 3)
    report = verify_audit(out)
    assert report.problems == []
    assert any("2 masks" in note and "the run did not finish" in note for note in report.notes)
    assert report.counts()["answers"] == 4
    for number in range(3):  # more than a batch
        (out / "masks" / f"x{number}.png").write_bytes(b"x")
    assert any(problem.startswith("5 masks") for problem in verify_audit(out).problems)
    for number in range(3):
        (out / "masks" / f"x{number}.png").unlink()
    predict(disc_model, images, out, **common)
    report = verify_audit(out)
    assert (report.problems, report.notes) == ([], [])


@pytest.mark.parametrize("change", ["image", "mask"])
def test_a_mask_that_a_killed_call_has_replaced_is_not_taken_for_changed_by_hand(
    disc_model, images, tmp_path, killed_before_its_line, change
):
    out, common = tmp_path / "out", {"method": "norm", "batch": 2, "overlays": False}
    predict(disc_model, images, out, **common)
    if change == "image":
        Image.open(images / "02.tif").save(images / "00.png")
    else:
        (out / "masks" / "00.png").unlink()
    killed_before_its_line(lambda: predict(disc_model, images, out, **common), out, 1)
    outcome = predict(disc_model, images, out, **common)
    assert (outcome.edited, outcome.done, outcome.kept) == ((), 1, 6)
    report = verify_audit(out)
    assert (report.problems, report.masks) == ([], {})


@pytest.fixture
def series(tmp_path, write_dicom, discs):
    """`series(numbers, shift)` writes slices, each with the pixels of the disc of that number plus `shift`."""

    def write(numbers, shift=0):
        for n in numbers:
            picture = np.asarray(Image.open(discs / "west" / "images" / f"{n + shift:02}.png"))
            write_dicom(
                tmp_path / "site" / f"IM{n:04}", picture[..., 0].astype(np.uint16) * 16, MR, series="1.2.5", bits=12,
                modality="MR", FrameOfReferenceUID="1.2.6", ImagePositionPatient=[0, 0, 3.0 * n],
                ImageOrientationPatient=[1, 0, 0, 0, 1, 0], PixelSpacing=[0.5, 0.5], SliceThickness=3,
            )  # fmt: skip
        return tmp_path / "site"

    return write


def test_a_slice_that_changed_gives_a_new_mask_of_the_whole_series(disc_model, series, tmp_path):
    out, common = tmp_path / "out", {"method": "source", "batch": 1, "overlays": False}
    predict(disc_model, series(range(4)), out, **common)
    (mask,) = (out / "masks").iterdir()
    before = mask.read_bytes()
    outcome = predict(disc_model, series([2], shift=4), out, **common)
    assert (outcome.done, outcome.kept, outcome.set_aside) == (4, 0, {})
    assert mask.read_bytes() != before
    assert predict(disc_model, series([]), out, **common).kept == 4
    assert verify_audit(out).masks == {}


def test_the_mask_that_another_name_of_its_series_replaces_is_not_missing(disc_model, series, tmp_path):
    """A slice that comes first in the order of names gives the mask its name."""
    out = tmp_path / "out"
    predict(disc_model, series([2, 3]), out)
    predict(disc_model, series([1]), out)
    assert [path.name for path in (out / "masks").iterdir()] == ["IM0001.dcm"]
    report = verify_audit(out)
    assert (report.problems, report.masks) == ([], {})
