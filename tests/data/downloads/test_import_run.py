"""An import continues, sets aside what is bad, and refuses folders that hold something else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.data import check_benchmark, find_sites, load_benchmark
from ttdg.data.downloads import run as import_run
from ttdg.data.downloads.run import import_dataset
from ttdg.errors import UserError

from .conftest import AFFINE, SIDES, gland, save, save_nifti


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.glob("*/*s/*")}


def test_a_second_import_writes_nothing(make_fake, tmp_path):
    fake, out = make_fake("kvasir"), tmp_path / "out"
    assert import_dataset("kvasir", fake.root, out, workers=1).written == 2
    before = times(out)
    report = import_dataset("kvasir", fake.root, out, workers=1)
    assert (report.written, report.kept) == (0, 2)
    assert times(out) == before


def test_an_interrupted_import_leaves_whole_files_and_is_continued(make_fake, tmp_path, monkeypatch):
    fake, out = make_fake("refuge"), tmp_path / "out"
    convert, calls = import_run.convert_case, []

    def stop_at_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        convert(*arguments)

    monkeypatch.setattr(import_run, "convert_case", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        import_dataset("refuge", fake.root, out, workers=1)
    assert not list(out.glob("*/*/.*"))  # no temporary file
    monkeypatch.setattr(import_run, "convert_case", convert)
    report = import_dataset("refuge", fake.root, out, workers=1)
    assert report.kept >= 2
    assert report.kept + report.written == 4
    assert check_benchmark(out, load_benchmark("fundus"), workers=1).ok


def test_bad_files_are_set_aside_with_a_reason_and_the_rest_is_imported(make_fake, tmp_path):
    fake, out = make_fake("refuge"), tmp_path / "out"
    images = fake.root / "Training400" / "Glaucoma"
    masks = fake.root / "Annotation-Training400" / "Disc_Cup_Masks" / "Glaucoma"
    sound = (images / "g0001.jpg", masks / "g0001.bmp")
    for number in (2, 3, 4, 5):
        shutil.copy(sound[0], images / f"g000{number}.jpg")
        shutil.copy(sound[1], masks / f"g000{number}.bmp")
    (images / "g0002.jpg").write_bytes(sound[0].read_bytes()[:200])
    (masks / "g0003.bmp").unlink()
    save(masks / "g0004.bmp", np.full(SIDES, 77, np.uint8))
    save(masks / "g0005.bmp", np.full((SIDES[0], SIDES[1] + 1), 255, np.uint8))
    report = import_dataset("refuge", fake.root, out, workers=1)
    reasons = {problem.file.stem: problem.what for problem in report.set_aside}
    assert set(reasons) == {"g0002", "g0003", "g0004", "g0005"}
    assert "truncated" in reasons["g0002"]
    assert "has no mask" in reasons["g0003"]
    assert "unknown values: 77" in reasons["g0004"]
    assert "33 × 24 pixels" in reasons["g0005"]
    assert {case.name for case in find_sites(out)["refuge"].cases} == {"g0001", "n0001"}
    written = json.loads((out / "import-refuge.json").read_text())
    assert {Path(entry["file"]).stem for entry in written["set aside"]} == set(reasons)
    shutil.copy(sound[0], images / "g0002.jpg")  # repaired
    assert import_dataset("refuge", fake.root, out, workers=1).written == 1


def test_a_mask_that_lies_elsewhere_is_set_aside_and_a_turned_one_is_not(make_fake, tmp_path):
    fake, out = make_fake("prostate-six"), tmp_path / "out"
    values, zones = gland(0)
    moved = AFFINE.copy()
    moved[2, 3] += 3
    save_nifti(fake.root / "HK" / "Case07.nii.gz", values)
    save_nifti(fake.root / "HK" / "Case07_segmentation.nii.gz", zones, moved)
    flip = np.diag([1.0, -1, 1, 1])
    flip[1, 3] = zones.shape[1] - 1
    save_nifti(fake.root / "HK" / "Case08.nii.gz", values)
    save_nifti(fake.root / "HK" / "Case08_segmentation.nii.gz", zones[:, ::-1], AFFINE @ flip)
    report = import_dataset("prostate-six", fake.root, out, workers=1)
    (problem,) = report.set_aside
    assert problem.file.name == "Case07.nii.gz"
    assert "another shape or position" in problem.what
    sites = find_sites(out)["hk"].cases
    from ttdg.data.loading import case_mask

    found = np.stack([case_mask(case) for case in sites if case.volume == "Case08"]) > 0
    assert np.array_equal(found, (zones > 0).transpose(2, 1, 0))


def test_a_folder_with_other_labels_raters_or_the_same_site_is_refused(make_fake, tmp_path):
    out = tmp_path / "out"
    rimone = make_fake("rimone")
    import_dataset("rimone", rimone.root, out, workers=1)
    with pytest.raises(UserError, match="imported otherwise"):
        import_dataset("rimone", rimone.root, out, rater="expert1")
    with pytest.raises(UserError, match="other labels"):
        import_dataset("kvasir", make_fake("kvasir").root, out)
    six = tmp_path / "six"
    import_dataset("prostate-six", make_fake("prostate-six").root, six, workers=1)
    with pytest.raises(UserError, match="holds the site bmc of prostate-six"):
        import_dataset("nci-isbi", make_fake("nci-isbi").root, six)


def test_what_is_no_download_of_the_data_set_is_refused_with_the_expected_layout(make_fake, tmp_path):
    fake = make_fake("kvasir")
    (fake.root / "more.zip").touch()
    with pytest.raises(UserError, match=r"extract more\.zip first\. Expected: CaseNN\.mhd"):
        import_dataset("promise12", fake.root, tmp_path / "out")
    with pytest.raises(UserError, match="no folder"):
        import_dataset("promise12", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UserError, match="did you mean 'kvasir'"):
        import_dataset("kvasr", fake.root, tmp_path / "out")
    with pytest.raises(UserError, match="no rater"):
        import_dataset("kvasir", fake.root, tmp_path / "out", rater="me")
    with pytest.raises(UserError, match="inside the download"):
        import_dataset("kvasir", fake.root, fake.root / "out")


def test_a_dicom_series_is_converted_and_a_broken_one_is_set_aside(make_fake, tmp_path, write_dicom):
    import nibabel

    fake, out = make_fake("nci-isbi"), tmp_path / "out"
    series = fake.root / "Prostate-3T" / "Prostate3T-01-0001" / "1.3.6" / "1.3.7"
    series.mkdir(parents=True)
    (series / "1-01.dcm").touch()
    volume = fake.root / "Image" / "Prostate3T-01-0001.nii.gz"
    stored = nibabel.load(volume)
    voxels, affine = np.asarray(stored.dataobj), np.diag([-1.0, -1.0, 1.0, 1.0]) @ stored.affine
    volume.unlink()
    report = import_dataset("nci-isbi", fake.root, out, workers=1)
    assert "1.3.7" in report.set_aside[0].what
    (series / "1-01.dcm").unlink()
    x, y = (np.linalg.norm(affine[:3, axis]) for axis in (0, 1))
    for number in range(voxels.shape[2]):
        write_dicom(
            series / f"1-{number:02}.dcm", voxels[..., number].T.astype(np.uint16), bits=12,
            SeriesInstanceUID="1.2.3", FrameOfReferenceUID="1.2.4", PixelSpacing=[float(y), float(x)],
            ImageOrientationPatient=[*(affine[:3, 0] / x), *(affine[:3, 1] / y)],
            ImagePositionPatient=[float(value) for value in affine[:3, 3] + number * affine[:3, 2]],
        )  # fmt: skip
    assert import_dataset("nci-isbi", fake.root, out, workers=1).sites == {"runmc": 1, "bmc": 1}
    found = nibabel.load(next((out / "runmc" / "images").glob("*.nii.gz")))
    np.testing.assert_allclose(found.affine, stored.affine, atol=1e-5)
    np.testing.assert_allclose(np.asarray(found.dataobj), voxels)


def test_a_table_names_sites_patients_and_splits(make_fake, tmp_path):
    fake, table = make_fake("kvasir"), tmp_path / "cases.csv"
    table.write_text("case,site,patient,split\ncju0,oslo,p1,test\n")
    report = import_dataset("kvasir", fake.root, tmp_path / "out", table=table, workers=1)
    assert report.sites == {"oslo": 1, "kvasir": 1}
    (case,) = find_sites(tmp_path / "out")["oslo"].cases
    assert (case.patient, case.split) == ("p1", "test")


def test_a_table_names_cases_that_several_sites_have_by_their_site(make_fake, tmp_path):
    fake, table = make_fake("prostate-six"), tmp_path / "cases.csv"
    for centre in ("HK", "BMC"):
        values, zones = gland(0)
        save_nifti(fake.root / centre / "Case77.nii.gz", values)
        save_nifti(fake.root / centre / "Case77_segmentation.nii.gz", zones)
    table.write_text("case,site\nCase77,centre-x\n")
    with pytest.raises(
        UserError, match="the case Case77 of centre-x; name cases that several sites have as SITE/CASE"
    ):
        import_dataset("prostate-six", fake.root, tmp_path / "none", table=table, workers=1)
    table.write_text("case,site,split\nhk/Case77,centre-x,test\nCase77,,train\nCase99,,test\n")
    report = import_dataset("prostate-six", fake.root, tmp_path / "out", table=table, workers=1)
    cases = {
        name: {c.volume: c.split for c in site.cases} for name, site in find_sites(tmp_path / "out").items()
    }
    assert cases["centre-x"] == {"Case77": "test"}
    assert cases["bmc"]["Case77"] == "train"
    assert "Case77" not in cases["hk"]
    assert [problem.what for problem in report.set_aside] == [
        "has a line for 'Case99', which is no case of the download"
    ]


@pytest.mark.parametrize("site", ["../elsewhere", "a/b", "..", ".hidden"])
def test_a_table_cannot_name_a_site_outside_the_folder(make_fake, tmp_path, site):
    table = tmp_path / "cases.csv"
    table.write_text(f"case,site\ncju0,{site}\n")
    with pytest.raises(UserError, match="write a name that can be that of a folder"):
        import_dataset("kvasir", make_fake("kvasir").root, tmp_path / "out", table=table)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["", "_segmentation"])
def test_a_truncated_volume_is_set_aside(make_fake, tmp_path, kind):
    fake = make_fake("prostate-six")
    noise = (
        np.random.default_rng(0).integers(0, 500, (64, 64, 8)).astype(np.int16)
    )  # longer than what is read first
    save_nifti(fake.root / "HK" / "Case07.nii.gz", noise)
    save_nifti(fake.root / "HK" / "Case07_segmentation.nii.gz", noise % 3)
    path = fake.root / "HK" / f"Case07{kind}.nii.gz"
    path.write_bytes(path.read_bytes()[:-4000])
    (problem,) = import_dataset("prostate-six", fake.root, tmp_path / "out", workers=1).set_aside
    assert problem.file.name == "Case07.nii.gz"
    assert "is truncated or damaged" in problem.what


def test_the_command_ends_with_1_if_a_file_was_set_aside(make_fake, tmp_path):
    fake, out = make_fake("kvasir"), tmp_path / "out"
    words = ["data", "import", "kvasir", str(fake.root), str(out), "--workers", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "kvasir 2; 2 written, 0 kept, 0 set aside" in done.output
    (fake.root / "Kvasir-SEG" / "images" / "cju9.jpg").touch()
    (fake.root / "Kvasir-SEG" / "masks" / "cju9.jpg").touch()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "cju9.jpg is set aside" in done.output
    assert "0 written, 2 kept, 1 set aside" in done.output
