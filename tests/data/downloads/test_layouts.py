"""Every described data set is imported from a small fake of its download."""

import numpy as np
import pytest
from PIL import Image

from ttdg.data import check_benchmark, find_sites, load_benchmark
from ttdg.data.case_table import read_cases
from ttdg.data.downloads.description import dataset_description, importable
from ttdg.data.downloads.run import import_dataset
from ttdg.data.loading import case_image, case_mask
from ttdg.data.volumes.nifti import read_geometry, read_volume

from .conftest import FAKES, SHAPE, gland, photograph, save

SEGMENTED = [name for name in FAKES if dataset_description(name).benchmark]


def test_every_description_has_a_fake():
    assert set(importable()) == set(FAKES)


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_download_becomes_a_benchmark_with_the_labels_that_were_drawn(name, make_fake, tmp_path):
    fake, out = make_fake(name), tmp_path / "out"
    report = import_dataset(name, fake.root, out, workers=1)
    assert not report.set_aside
    assert dict(report.sites) == {site: len(cases) for site, cases in fake.labels.items()}
    benchmark = load_benchmark(None, out)
    assert check_benchmark(out, benchmark, workers=1).ok
    sites = find_sites(out)
    assert set(sites) == set(fake.labels)
    for site, cases in fake.labels.items():
        assert {case.volume or case.name for case in sites[site].cases} == set(cases)
        for case in sites[site].cases:
            labels = cases[case.volume or case.name]
            if case.slice is not None:
                labels = labels[:, :, case.slice].T
            assert np.array_equal(benchmark.encode(case_mask(case)), labels)
            assert case_image(case, benchmark.normalisation).shape[:2] == labels.shape


@pytest.mark.parametrize("name", sorted(set(FAKES) - set(SEGMENTED)))
def test_class_folders_keep_domain_class_and_image(name, make_fake, tmp_path):
    fake, out = make_fake(name), tmp_path / "out"
    report = import_dataset(name, fake.root, out, workers=1)
    assert not report.set_aside
    assert {path.relative_to(out).as_posix() for path in out.glob("*/*/*")} == fake.classes
    assert all(Image.open(out / path).size == (32, 24) for path in fake.classes)


@pytest.mark.parametrize(
    ("name", "path", "place"),
    [
        ("pacs", "Photo/Dog/a.jpg", "photo/dog/a.jpg"),
        ("vlcs", "voc2007/Bird/a.jpg", "VOC2007/bird/a.jpg"),
        ("vlcs", "pascal/FULL/3/a.jpg", "VOC2007/dog/a.jpg"),
    ],
)
def test_domains_and_classes_keep_their_names_in_whatever_letter_case_a_copy_has_them(
    name, path, place, tmp_path
):
    save(tmp_path / "download" / path, photograph(0))
    import_dataset(name, tmp_path / "download", tmp_path / "out")
    written = [file for file in (tmp_path / "out").rglob("*") if file.suffix == ".jpg"]
    assert [str(file.relative_to(tmp_path / "out")) for file in written] == [place]


def test_a_converted_volume_keeps_its_values_spacing_and_position(make_fake, tmp_path):
    fake, out = make_fake("promise12"), tmp_path / "out"
    import_dataset("promise12", fake.root, out, workers=1)
    path = out / "ucl" / "images" / "Case30.nii.gz"
    geometry = read_geometry(path)
    assert geometry.shape == SHAPE[::-1]
    assert geometry.spacing == (3.0, 0.75, 0.5)
    assert geometry.affine[:3, 3].tolist() == [10.0, 20.0, -5.0]
    assert np.array_equal(read_volume(path), gland(30)[0].transpose(2, 1, 0))


def test_an_image_that_needs_no_change_is_copied_byte_for_byte(make_fake, tmp_path):
    fake, out = make_fake("refuge"), tmp_path / "out"
    import_dataset("refuge", fake.root, out, workers=1)
    copy, original = (
        out / "refuge" / "images" / "g0001.jpg",
        fake.root / "Training400" / "Glaucoma" / "g0001.jpg",
    )
    assert copy.read_bytes() == original.read_bytes()


def test_of_a_stereo_pair_the_left_photograph_is_kept(make_fake, tmp_path):
    fake, out = make_fake("rimone"), tmp_path / "out"
    import_dataset("rimone", fake.root, out, workers=1)
    kept = np.asarray(Image.open(out / "rimone" / "images" / "N-1-L.png")).astype(int)
    assert np.abs(kept - photograph(0)).mean() < np.abs(kept - photograph(99)).mean()


def test_patients_and_splits_come_from_names_folders_and_tables(make_fake, tmp_path):
    tables = {}
    for name in ("rimone", "drishti", "clinicdb"):
        import_dataset(name, make_fake(name).root, tmp_path / name, workers=1)
        tables[name] = read_cases(tmp_path / name / name / "cases.csv")[0]
    assert {case: row.patient for case, row in tables["rimone"].items()} == {
        "G-7-L": "G-7", "N-1-L": "N-1", "N-1-R": "N-1",
    }  # fmt: skip
    assert [row.split for row in tables["drishti"].values()] == ["train", "test"]
    assert [row.patient for row in tables["clinicdb"].values()] == ["1", "1", "2"]


def test_another_rater_gives_other_masks_and_the_last_of_several_tries(make_fake, tmp_path):
    fake = make_fake("rimone")
    import_dataset("rimone", fake.root, tmp_path / "out", rater="expert1", workers=1)
    (case,) = [case for case in find_sites(tmp_path / "out")["rimone"].cases if case.name == "N-1-L"]
    expected = np.roll(fake.labels["rimone"]["N-1-L"], 2, 0)
    assert np.array_equal(load_benchmark("fundus").encode(case_mask(case)), expected)


def test_the_six_centres_of_the_paper_can_come_from_three_downloads(make_fake, tmp_path):
    out = tmp_path / "out"
    for name in ("promise12", "nci-isbi", "i2cvb"):
        import_dataset(name, make_fake(name).root, out, workers=1)
    assert {"runmc", "bmc", "i2cvb", "ucl", "bidmc", "hk"} <= set(find_sites(out))
