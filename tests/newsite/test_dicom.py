"""DICOM in, DICOM segmentations out: pixel-exact, correctly referenced, and without the patient."""

import csv
import json

import highdicom
import numpy as np
import pytest
from pydicom import dcmread, uid
from typer.testing import CliRunner

from ttdg.checkpoints import save
from ttdg.cli import app
from ttdg.newsite import predict
from ttdg.newsite.stacks.segmentation_object import Maker, write_segmentation

PHOTOGRAPH, MR = "1.2.840.10008.5.1.4.1.1.77.1.5.1", "1.2.840.10008.5.1.4.1.1.4"
NAME = "Zebedee^Quillfeather"


def rows(out):
    with (out / "manifest.csv").open() as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def drawn(discs, site="west", number=0):
    from PIL import Image

    return np.asarray(Image.open(discs / site / "images" / f"{number:02}.png"))


def mr_slices(folder, write_dicom, discs, count=5, **more):
    """A series of slices whose names are not in the order of their positions."""
    found = {}
    for n in range(count):
        pixels = drawn(discs, number=n)[..., 0].astype(np.uint16) * 16
        path = folder / f"IM{(7 * n + 3) % 11:04}"
        found[n] = path, write_dicom(
            path, pixels, MR, series="1.2.5", modality="MR", FrameOfReferenceUID="1.2.6", bits=12, name=NAME,
            ImagePositionPatient=[0, 0, 3.0 * n], ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
            PixelSpacing=[0.5, 0.5], SliceThickness=3, **more,
        )  # fmt: skip
    return found


@pytest.fixture
def site(tmp_path, write_dicom, discs):
    """A photograph, a video, a capture in JPEG-LS and a series, each of which becomes one segmentation."""
    root = tmp_path / "site"
    op = write_dicom(root / "op.dcm", drawn(discs), PHOTOGRAPH, colour=True, name=NAME)
    video = np.stack([drawn(discs, number=n) for n in range(3)])
    cine = write_dicom(root / "cine.dcm", video, PHOTOGRAPH, colour=True, name=NAME)
    grey = drawn(discs, number=4)[..., 1].astype(np.uint16) * 16
    capture = write_dicom(root / "capture", grey, bits=12, compress=uid.JPEGLSLossless, name=NAME)
    series = mr_slices(root / "mr", write_dicom, discs)
    return root, {"op": op, "cine": cine, "capture": capture, "series": series}


def segments(path):
    """The labels of each frame by what it refers to: (SOP instance, frame number) → array. An independent reader."""
    data = dcmread(path)
    pixels, found = np.atleast_3d(data.pixel_array), {}
    pixels = pixels.reshape(int(data.NumberOfFrames), data.Rows, data.Columns)
    shared = data.SharedFunctionalGroupsSequence[0]
    for plane, item in zip(pixels, data.PerFrameFunctionalGroupsSequence, strict=True):
        (source,) = item.DerivationImageSequence[0].SourceImageSequence
        which = item if "SegmentIdentificationSequence" in item else shared
        number = which.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        key = str(source.ReferencedSOPInstanceUID), source.get("ReferencedFrameNumber", 1)
        found.setdefault(key, np.zeros(plane.shape, np.uint8))[plane > 0] = number
    return found


def references(data):
    """Every UID that an object refers to, at any depth."""
    found = {str(data.ReferencedSOPInstanceUID)} if "ReferencedSOPInstanceUID" in data else set()
    for element in data:
        for item in element.value if element.VR == "SQ" else ():
            found |= references(item)
    return found


def test_every_frame_has_its_own_answer_in_a_segmentation_that_refers_to_it(disc_model, site, tmp_path, seen):
    root, images = site
    outcome = predict(disc_model, root, tmp_path / "out", method="norm", batch=2)
    assert (outcome.done, outcome.set_aside) == (8, {})
    masks = {str(path.relative_to(tmp_path / "out/masks")) for path in (tmp_path / "out/masks").rglob("*.*")}
    assert masks == {"capture.dcm", "cine.dcm", "mr/IM0002.dcm", "op.dcm"}
    assert not (tmp_path / "out/parts").exists()
    found = {name: segments(tmp_path / "out/masks" / name) for name in masks}
    expected = [(images["capture"].SOPInstanceUID, 1), *((images["cine"].SOPInstanceUID, n) for n in (1, 2, 3)),
                *((data.SOPInstanceUID, 1) for _, (_, data) in sorted(images["series"].items())),
                (images["op"].SOPInstanceUID, 1)]  # fmt: skip
    together = {key: value for masks in found.values() for key, value in masks.items()}
    assert len(seen) == len(expected) == len(together)
    for key, labels in zip(expected, seen, strict=True):
        np.testing.assert_array_equal(together[str(key[0]), key[1]], labels)
    assert any(labels.any() and not labels.all() for labels in seen)
    table = rows(tmp_path / "out")
    assert table["cine.dcm"]["frames"] == "3"
    assert {row["mask"] for file, row in table.items() if file.startswith("mr/")} == {"masks/mr/IM0002.dcm"}
    again = predict(disc_model, root, tmp_path / "out", method="norm", batch=2)
    assert (again.done, again.kept) == (0, 8)


def test_a_library_for_segmentations_finds_the_study_the_place_and_the_segments(disc_model, site, tmp_path):
    root, images = site
    real = {str(dcmread(path).SOPInstanceUID) for path in root.rglob("*") if path.is_file()}
    predict(disc_model, root, tmp_path / "out", overlays=False)
    for path in sorted((tmp_path / "out/masks").rglob("*.dcm")):
        data = highdicom.seg.segread(path)
        assert data.StudyInstanceUID == "1.2.3.4"
        assert [item.SegmentLabel for item in data.SegmentSequence] == ["disc"]
        assert str(data.PatientName) == data.PatientID == data.StudyDate == ""
        assert ("FrameOfReferenceUID" in data) == ("mr" in str(path))
        assert references(data) <= real, "no reference leads to anything but an input"
    series = highdicom.seg.segread(tmp_path / "out/masks/mr/IM0002.dcm")
    uids = [data.SOPInstanceUID for _, (_, data) in sorted(images["series"].items())]
    planes = series.get_pixels_by_source_instance(uids, combine_segments=True)
    found = segments(tmp_path / "out/masks/mr/IM0002.dcm")
    np.testing.assert_array_equal(planes, np.stack([found[str(name), 1] for name in uids]))
    assert series.get_volume().spacing == (3.0, 0.5, 0.5)


@pytest.mark.parametrize("labels", [("background", "disc"), ("background", "disc", "cup", "rim")])
def test_any_labels_are_read_back_exactly(tmp_path, write_dicom, labels):
    from ttdg.data.dicom import read_dicom_header

    rng = np.random.default_rng(1)
    indices = rng.integers(0, len(labels), (3, 21, 13)).astype(np.uint8)
    indices[1] = 0  # a frame without foreground
    data = write_dicom(tmp_path / "a.dcm", rng.integers(0, 256, (3, 21, 13), np.uint8), PHOTOGRAPH)
    image = read_dicom_header(tmp_path / "a.dcm")
    for frames in ((0, 1, 2), (2,), (0, 2)):
        stack = [(image, n) for n in frames], indices[list(frames)], labels, Maker("m", "0", "1")
        write_segmentation(tmp_path / "s.dcm", *stack)
        found = segments(tmp_path / "s.dcm")
        assert found.keys() == {(data.SOPInstanceUID, n + 1) for n in frames}
        for n in frames:
            np.testing.assert_array_equal(found[data.SOPInstanceUID, n + 1], indices[n])
        first = (tmp_path / "s.dcm").read_bytes()
        write_segmentation(tmp_path / "s.dcm", *stack)
        assert (tmp_path / "s.dcm").read_bytes() == first


class Stop(Exception):
    """Stands for anything that ends a run."""


def test_a_run_that_was_interrupted_inside_a_stack_ends_in_the_same_files(disc_model, site, tmp_path):
    def stop(done, total):
        if done >= 5:  # inside the series
            raise Stop

    common = {"method": "norm", "batch": 2, "overlays": False}
    predict(disc_model, site[0], tmp_path / "whole", **common)
    with pytest.raises(Stop):
        predict(disc_model, site[0], tmp_path / "out", progress=stop, **common)
    predict(disc_model, site[0], tmp_path / "out", **common)

    def content(out):
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}

    first, second = content(tmp_path / "whole"), content(tmp_path / "out")
    for dated in ("journal.jsonl", "audit.jsonl", "report.html"):
        del first[dated], second[dated]
    described = [json.loads(files.pop("manifest.json")) for files in (first, second)]
    for each in described:
        del each["audit"]  # the hashes of its lines cover their times
    assert described[0] == described[1]
    assert first == second


def test_a_slice_that_is_added_to_a_series_gives_a_new_mask_of_all_slices(
    disc_model, tmp_path, write_dicom, discs
):
    mr_slices(tmp_path / "site", write_dicom, discs, 3)
    predict(disc_model, tmp_path / "site", tmp_path / "out", method="source")
    mr_slices(tmp_path / "site", write_dicom, discs, 4)
    (tmp_path / "site/IM0003").touch()
    predict(disc_model, tmp_path / "site", tmp_path / "out", method="source")
    (mask,) = (tmp_path / "out/masks").rglob("*.dcm")
    assert len(segments(mask)) == 4
    assert len(list((tmp_path / "out/overlays").rglob("*.jpg"))) == 4


def test_a_series_without_the_identifier_of_its_study_gets_a_mask(disc_model, tmp_path, write_dicom, discs):
    mr_slices(tmp_path / "site", write_dicom, discs, 3, StudyInstanceUID="")
    assert predict(disc_model, tmp_path / "site", tmp_path / "out", method="source").done == 3
    (mask,) = (tmp_path / "out/masks").rglob("*.dcm")
    assert len(segments(mask)) == 3


def test_damaged_files_and_objects_without_images_are_set_aside(
    disc_model, site, tmp_path, write_dicom, discs
):
    root, _ = site
    broken = root / "mr/IM0003"
    broken.write_bytes(broken.read_bytes()[:-500])
    (root / "cut.dcm").write_bytes((root / "op.dcm").read_bytes()[:400])
    data = dcmread(root / "op.dcm")
    del data.Rows, data.PixelData
    data.save_as(root / "report.dcm")
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = "1.2.840.10008.1.3.10"
    data.save_as(root / "DICOMDIR")
    save(tmp_path / "model", disc_model.network, disc_model.card)
    result = CliRunner().invoke(
        app,
        [
            "predict",
            "-m",
            str(tmp_path / "model"),
            "-i",
            str(root),
            "-o",
            str(tmp_path / "out"),
            "--device",
            "cpu",
        ],
    )
    assert result.exit_code == 3, result.output
    table = rows(tmp_path / "out")
    assert table.keys() == {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert "holds no image" in table["report.dcm"]["reason"]
    assert table["DICOMDIR"]["status"] == "ignored"
    assert table["cut.dcm"]["status"] == "set aside"
    assert "IM0003 has DICOM pixel data" in table["mr/IM0003"]["reason"]
    assert table["op.dcm"]["status"] == "segmented"
    assert str(root) not in result.output + (tmp_path / "out/manifest.csv").read_text()


PLANTED = b"Quillfeather"


def test_no_identifying_tag_reaches_an_output_unless_it_is_asked_for(
    disc_model, tmp_path, write_dicom, discs, capfd
):
    """Names are planted in tags of whole and damaged files; every byte written and said is searched."""
    root, tags = tmp_path / "site", {}
    for tag in ("InstitutionName", "OtherPatientIDs", "PatientAddress", "ImageComments", "OperatorsName", "StationName",
                "StudyDescription", "SeriesDescription", "ProtocolName", "PatientComments"):  # fmt: skip
        tags[tag] = NAME
    for n in range(4):
        colour = drawn(discs, number=n)
        write_dicom(root / f"{n}/op.dcm", colour, PHOTOGRAPH, colour=True, name=NAME, **tags)
        write_dicom(root / f"{n}/jls.dcm", colour[..., 0], name=NAME, compress=uid.JPEGLSLossless, **tags)
        write_dicom(
            root / f"{n}/cine.dcm", np.stack([colour] * 2), PHOTOGRAPH, colour=True, name=NAME, **tags
        )
        for share in (0.1, 0.3, 0.6, 0.95):
            content = (root / f"{n}/op.dcm").read_bytes()
            (root / f"{n}/cut{share}.dcm").write_bytes(content[: int(len(content) * share)])
    data = dcmread(root / "0/op.dcm")
    data.Rows = 77
    data.WindowCenter, data.WindowWidth = "1", "2"
    data.save_as(root / "wrong.dcm")
    content = (root / "0/op.dcm").read_bytes()
    (root / "vr.dcm").write_bytes(content.replace(b"IS", b"PN").replace(b"US", b"PN"))
    mr_slices(root / "mr", write_dicom, discs, 4, **tags)
    outcome = predict(disc_model, root, tmp_path / "out")
    assert outcome.done >= 4 + 4 + 4 + 4
    assert len(outcome.set_aside) >= 10
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    for path in written:
        assert PLANTED not in path.read_bytes(), path
        assert PLANTED.decode() not in path.name
    assert "Quillfeather" not in "".join(capfd.readouterr()) + str(outcome.set_aside)
    predict(disc_model, root / "0/op.dcm", tmp_path / "kept", keep_identity=True)
    kept = dcmread(tmp_path / "kept/masks/op.dcm")
    assert (str(kept.PatientName), kept.StudyDate) == (NAME, "20200102")
    assert "InstitutionName" not in kept
