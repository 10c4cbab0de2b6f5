"""DICOM and NIfTI on the page: frames are shown, masks are exported, and the brush leaves them alone."""

import io
import json
import zipfile

import nibabel
import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from ttdg.newsite.audit import verify_audit
from ttdg.page.contours import image_key
from ttdg.page.uploads import safe_name

PHOTOGRAPH = "1.2.840.10008.5.1.4.1.1.77.1.5.1"
NAME = "Zebedee^Quillfeather"


@pytest.fixture
def scans(tmp_path, discs, write_dicom):
    """A video of two frames, a volume of two slices, and a photograph, each with the name of a patient inside."""
    folder = tmp_path / "scans"
    folder.mkdir()
    pictures = [np.asarray(Image.open(discs / "west" / "images" / f"{n:02}.png")) for n in range(2)]
    write_dicom(folder / "cine.dcm", np.stack(pictures), PHOTOGRAPH, colour=True, name=NAME)
    values = np.stack([picture[..., 0].T for picture in pictures], axis=-1).astype(np.float32)
    image = nibabel.Nifti1Image(values, np.diag([-1.0, -1.0, 1.0, 1.0]))
    image.header["descrip"] = NAME.encode()
    nibabel.save(image, folder / "eye.nii.gz")
    Image.fromarray(pictures[0]).save(folder / "photo.png")
    return folder


@pytest.fixture
def uploaded(browser, settings, scans):
    """The identifier of a site whose files were uploaded, the volume twice."""
    identifier = browser.new_site(settings, "", method="source")
    for name in ("cine.dcm", "eye.nii.gz", "eye.nii.gz", "photo.png"):
        data = (scans / name).read_bytes()
        answer = browser.send("PUT", f"/sites/{identifier}/images", params={"name": name}, content=data)
        assert answer.status_code == 200
    browser.send("POST", f"/sites/{identifier}/start")
    assert browser.wait(identifier) == "done"
    return identifier


FRAMES = [f"{name}/{n:04}" for name in ("cine.dcm", "eye (2).nii.gz", "eye.nii.gz") for n in (1, 2)]


def test_uploaded_scans_are_previewed_exported_and_not_painted_on(browser, settings, uploaded):
    folder = settings.work / "sites" / uploaded
    assert set(browser.keys(uploaded)) == {image_key(file) for file in (*FRAMES, "photo.png")}
    for file in FRAMES:
        address = f"/sites/{uploaded}/images/{image_key(file)}"
        outlines = json.loads((folder / "shown" / f"{image_key(file)}.json").read_text())
        preview = Image.open(io.BytesIO(browser.get(f"{address}.large.jpg").content))
        assert preview.size == (outlines["width"], outlines["height"])
        assert outlines["adapted"] == outlines["source"]
        assert "The brush corrects PNG masks only" in browser.get(address).text
    same = [
        (folder / "shown" / f"{image_key(file)}.json").read_bytes() for file in ("cine.dcm/0001", "photo.png")
    ]
    assert same[0] == same[1]  # equal pixels have equal contours, whatever file they come from
    assert "The brush corrects" not in browser.get(f"/sites/{uploaded}/images/{image_key('photo.png')}").text
    masks = {path.name: path.read_bytes() for path in (folder / "out" / "masks").iterdir()}
    stroke = {"strokes": [{"label": 1, "radius": 0.4, "points": [[0.5, 0.5]]}]}
    for file, kind in (("cine.dcm/0001", "a DICOM segmentation"), ("eye.nii.gz/0002", "a NIfTI file")):
        address = f"/sites/{uploaded}/images/{image_key(file)}"
        answer = browser.send("POST", f"{address}/strokes", json=stroke)
        assert answer.status_code == 400
        assert kind in answer.json()["reason"]
        for verdict in ("flagged", "undecided"):
            assert browser.send("POST", f"{address}/verdict", json={"verdict": verdict}).status_code == 200
    archive = zipfile.ZipFile(io.BytesIO(browser.get(f"/sites/{uploaded}/export.zip").content))
    names = [name for name in archive.namelist() if name.startswith("masks/")]
    assert sorted(names) == sorted(f"masks/{name}" for name in masks)
    assert {name: archive.read(f"masks/{name}") for name in masks} == masks
    segmentation = dcmread(io.BytesIO(masks["cine.dcm"]))
    assert segmentation.Modality == "SEG"
    assert NAME.encode() not in b"".join(archive.read(name) for name in archive.namelist())
    report = verify_audit(folder / "out")  # the parts of finished masks are not missed
    assert not report.problems
    assert report.masks == {}
    (folder / "out" / "masks" / "cine.dcm").write_bytes(b"other")
    assert verify_audit(folder / "out").masks == {"masks/cine.dcm": "was changed after it was written"}


@pytest.mark.parametrize("suffix", [".nii.gz", ".nii", ".dcm", ".png", ""])
def test_a_long_name_keeps_its_suffix_and_becomes_short(suffix):
    name = safe_name("é" * 200 + suffix)
    assert name.endswith(suffix)
    assert name.startswith("é" * 50)
    assert len(name.encode()) <= 150


def test_folders_of_scans_are_offered(settings, scans):
    import dataclasses

    (scans / "photo.png").unlink()
    for name in ("cine.dcm", "eye.nii.gz"):
        alone = scans.parent / f"only {name}"
        alone.mkdir()
        (scans / name).rename(alone / name)
    found = dataclasses.replace(settings, folders=(scans.parent,)).known_folders()
    assert {str(scans.parent / f"only {name}") for name in ("cine.dcm", "eye.nii.gz")} <= set(found)
    assert str(scans) not in found
