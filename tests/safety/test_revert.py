"""What a return to an earlier line moves, and what it leaves consistent."""

import csv

import nibabel
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.newsite import predict
from ttdg.newsite.audit import verify_audit
from ttdg.newsite.journal import Journal
from ttdg.newsite.revert import revert


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("to", range(8))
def test_the_places_of_review_are_numbered_again_without_gaps(out, to):
    withdrawn = revert(out, to)
    rows = table(out / "manifest.csv")
    assert {row["file"] for row in rows if row["status"] == "reverted"} == set(withdrawn)
    places = sorted(int(row["review"]) for row in rows if row["review"])
    assert places == list(range(1, 11 - len(withdrawn)))
    review = table(out / "review.csv")
    assert [int(row["review"]) for row in review] == places
    assert {row["file"] for row in review} == {row["file"] for row in rows} - set(withdrawn)
    assert {row["mask"] for row in review} == {f"masks/{name}" for name in files_below(out / "masks")}
    assert verify_audit(out).problems == []


def test_two_returns_do_not_replace_what_the_first_withdrew(out, answer_again):
    before = files_below(out)
    revert(out, 2)
    first = {path: path.read_bytes() for path in (out / "reverted").rglob("*") if path.is_file()}
    answer_again(out)
    revert(out, 2)
    assert {path: path.read_bytes() for path in first} == first
    folders = list((out / "reverted").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert files_below(folder) <= before
        assert len(list((folder / "masks").iterdir())) == 8
        assert (folder / "report.html").exists()
    assert not (out / "report.html").exists()


def test_a_return_that_withdraws_nothing_moves_nothing(out):
    last = len(verify_audit(out).lines)
    before = {path: path.read_bytes() for path in (out / "masks").iterdir()}
    assert revert(out, last) == ()
    assert {path: path.read_bytes() for path in (out / "masks").iterdir()} == before
    assert not (out / "reverted").exists()
    assert (out / "report.html").exists()
    result = CliRunner().invoke(app, ["revert", str(out), "--to", str(last + 1)])
    assert "no later answer was there" in result.output


def test_a_return_that_is_killed_leaves_a_folder_that_fits_its_log(out, answered, answer_again, monkeypatch):
    """At every step that it writes, in turn."""
    from ttdg.newsite import revert as module

    class Kill(BaseException):
        pass

    def kill(*arguments, **named):
        raise Kill

    for step in ("_move", "write_review", "write_description"):
        with monkeypatch.context() as patch:
            patch.setattr(module, step, kill)
            with pytest.raises(Kill):
                revert(out, 2)
        assert verify_audit(out).problems == [], step
        answer_again(out)
        report = verify_audit(out)
        assert (report.problems, report.masks) == ([], {}), step
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "begin", kill)
        with pytest.raises(Kill):
            revert(out, 2)
    assert verify_audit(out).problems == []
    answer_again(out)
    assert {path.name: path.read_bytes() for path in (out / "masks").iterdir()} == {
        path.name: path.read_bytes() for path in (answered / "masks").iterdir()
    }


@pytest.fixture
def volumes(tmp_path, discs):
    """Two volumes of four slices, and a photograph in a folder with the name of a volume."""
    pictures = [Image.open(discs / "west" / "images" / f"{n:02}.png").convert("L") for n in range(8)]
    for name, part in (("first", pictures[:4]), ("second", pictures[4:])):
        values = np.stack([np.asarray(picture, np.float32) for picture in part])
        (tmp_path / "site" / name).mkdir(parents=True, exist_ok=True)
        volume = nibabel.Nifti1Image(values.transpose(2, 1, 0), np.diag([-0.5, -0.5, 3, 1]))
        nibabel.save(volume, tmp_path / "site" / f"{name}.nii")
    pictures[0].save(tmp_path / "site" / "second" / "photo.png")
    return tmp_path / "site"


def test_slices_of_a_volume_are_withdrawn_together_with_maps_overlays_and_report(
    disc_model, volumes, tmp_path
):
    """The line lies between the batches of the second volume."""
    out, common = tmp_path / "out", {"method": "source", "batch": 2, "probabilities": True}
    predict(disc_model, volumes, out, **common)
    whole = files_below(out)
    to = next(
        line["number"]
        for line in verify_audit(out).lines
        if line["event"] == "answers" and line["files"][0]["file"].startswith("second.nii")
    )
    withdrawn = revert(out, to)
    assert set(withdrawn) - {"second/photo.png"} == {f"second.nii/{n:04}" for n in range(1, 5)}
    (folder,) = (out / "reverted").iterdir()
    moved, left = files_below(folder), files_below(out)
    assert {"masks/second.nii", "report.html"} <= moved
    for kind, suffix in (("overlays", ".jpg"), ("probabilities", "-1.png")):
        assert {f"{kind}/second/{n:04}{suffix}" for n in range(1, 5)} <= moved
        assert {f"{kind}/first/{n:04}{suffix}" for n in range(1, 5)} <= left
    assert moved & left == set()
    assert {row["file"] for row in table(out / "manifest.csv") if row["status"] == "reverted"} >= {
        "second.nii"
    }
    predict(disc_model, volumes, out, **common)
    assert whole <= files_below(out)
    assert verify_audit(out).problems == []


def test_maps_of_an_image_in_a_folder_with_the_name_of_a_withdrawn_volume_stay(disc_model, volumes, tmp_path):
    out = tmp_path / "out"
    predict(disc_model, volumes / "second.nii", out, probabilities=True, overlays=False)
    other = out / "probabilities" / "second" / "photo-1.png"
    other.write_bytes(b"x")
    revert(out, 0)
    assert files_below(out / "probabilities") == {"second/photo-1.png"}
