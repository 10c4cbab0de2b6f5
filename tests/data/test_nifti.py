"""NIfTI volumes: orientation, spacing, intensities, slices as cases, and the memory they need."""

import gzip
import itertools
import os
import re
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.data import (
    Benchmark,
    check_benchmark,
    complete_volumes,
    find_sites,
    fingerprint,
    load_benchmark,
    stream,
)
from ttdg.data.loading import load_arrays, read_case
from ttdg.data.volumes import kept, nifti
from ttdg.errors import UserError

CODES = [
    "".join(code)
    for names in itertools.permutations(("LR", "PA", "IS"))
    for code in itertools.product(*names)
]
SPACING = (3.0, 0.5, 0.25)  # z, y, x
SHAPE = (5, 8, 12)


def drawn(seed: int = 0) -> np.ndarray:
    """A volume along z, y, x as it is read: to the head, to the back, to the left."""
    return np.random.default_rng(seed).integers(0, 1000, SHAPE).astype(np.float32)


def save(path: Path, values: np.ndarray, code: str = "LPS", spacing=SPACING) -> Path:
    """Save a volume with its voxels stored along the axes of `code`."""
    affine = np.diag(
        [-spacing[2], -spacing[1], spacing[0], 1.0]
    )  # x to the left, y to the back; the world is RAS
    affine[:3, 3] = 40, 30, -20
    image = nibabel.Nifti1Image(values.transpose(2, 1, 0), affine)
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.io_orientation(affine), nibabel.orientations.axcodes2ornt(tuple(code))
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image.as_reoriented(turn), path)
    return path


@pytest.fixture
def benchmark():
    return Benchmark.from_dict(load_benchmark("prostate-nifti").to_dict() | {"size": 16})


@pytest.fixture
def root(tmp_path):
    """Two volumes at one site, each with a gland in its middle slices."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[1:4, 2:6, 3:9] = 2
    for number, name in enumerate(("one", "two")):
        suffix = (".nii", ".nii.gz")[number]
        save(tmp_path / f"a/images/{name}{suffix}", drawn(number))
        save(tmp_path / f"a/masks/{name}{suffix}", mask)
    return tmp_path


@settings(max_examples=48, deadline=None)
@given(st.sampled_from(CODES), st.sampled_from(nifti.SUFFIXES))
def test_the_stored_order_of_voxels_changes_nothing(tmp_path_factory, code, suffix):
    path = save(tmp_path_factory.mktemp("nifti") / f"v{suffix}", drawn(), code)
    np.testing.assert_array_equal(nifti.read_volume(path), drawn())
    found = nifti.read_geometry(path)
    assert found.shape == SHAPE
    assert found.spacing == pytest.approx(SPACING)


def test_an_oblique_volume_keeps_its_spacing_and_nearest_axes(tmp_path):
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]]
    affine = turn @ np.diag([-0.25, -0.5, 3, 1])
    nibabel.save(nibabel.Nifti1Image(drawn().transpose(2, 1, 0), affine), tmp_path / "v.nii")
    np.testing.assert_array_equal(nifti.read_volume(tmp_path / "v.nii"), drawn())
    assert nifti.read_geometry(tmp_path / "v.nii").spacing == pytest.approx(SPACING)


def test_slices_of_volumes_are_cases_of_their_patient(root):
    (root / "a/cases.csv").write_text("case,patient\none,p7\n")
    cases = find_sites(root)["a"].cases
    assert [case.name for case in cases] == [f"{name}_{n:04}" for name in ("one", "two") for n in range(5)]
    assert {case.patient for case in cases[:5]} == {"p7"}
    assert {case.patient for case in cases[5:]} == {"two"}
    assert all((case.slice_spacing, *case.spacing) == pytest.approx(SPACING) for case in cases)
    site = find_sites(root)["a"]
    one, two = complete_volumes([(site, case) for case in cases], 16, spacing=True)
    assert (one.name, two.name) == ("one", "two")
    assert one.spacing == pytest.approx((3.0, 0.5 * 8 / 16, 0.25 * 12 / 16))


def test_intensities_are_limited_to_5_to_95_percent_of_the_volume(root):
    values = drawn()
    low, high = np.percentile(values, (5, 95))
    expected = np.rint((np.clip(values, low, high) - low) * 255 / (high - low))
    path = root / "a/images/one.nii"
    clipped = np.stack([nifti.image_slice(path, n, clip=True)[..., 0] for n in range(5)])
    np.testing.assert_allclose(clipped, expected, atol=1)
    whole = np.stack([nifti.image_slice(path, n, clip=False)[..., 2] for n in range(5)])
    np.testing.assert_allclose(whole, np.rint(values * 255 / values.max()), atol=1)


def test_a_stream_of_slices_is_normalised_and_labelled(root, benchmark):
    cases = find_sites(root)["a"].cases
    batches = [loaded.batch for loaded in stream(cases, benchmark, [5, 5])]
    assert [len(batch.cases) for batch in batches] == [5, 5]
    for batch in batches:
        np.testing.assert_allclose(batch.images.mean((1, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(batch.images.var((1, 2, 3), correction=0), 1, atol=1e-3)
        assert batch.masks.flatten(1).any(1).tolist() == [False, True, True, True, False]
        assert set(batch.masks.unique().tolist()) == {0, 1}, "any value but 0 is prostate"


def test_slices_in_the_order_of_their_files_decode_each_file_once(root, benchmark, monkeypatch):
    kept._kept.clear()
    read, decoded = nifti.read_volume, []
    monkeypatch.setattr(nifti, "read_volume", lambda path: decoded.append(path.parts[-2:]) or read(path))
    load_arrays(find_sites(root)["a"].cases, benchmark, workers=2)
    assert sorted(decoded) == [
        ("images", "one.nii"),
        ("images", "two.nii.gz"),
        ("masks", "one.nii"),
        ("masks", "two.nii.gz"),
    ]
    assert all(len(volumes) <= kept.KEPT for volumes in kept._kept.values())


def test_a_changed_file_is_read_again_and_has_another_fingerprint(root, benchmark):
    cases = find_sites(root)["a"].cases
    before, mark = read_case(cases[0], benchmark)[0], fingerprint(cases)
    save(root / "a/images/one.nii", drawn(7))
    assert (read_case(cases[0], benchmark)[0] != before).any()
    assert fingerprint(cases) != mark


DAMAGES = {
    "no NIfTI": (lambda a: (a / "images/one.nii").write_bytes(b"nothing"), "cannot be read as NIfTI"),
    "a truncated file": (
        lambda a: (a / "images/one.nii").write_bytes((a / "images/one.nii").read_bytes()[:600]),
        "truncated or damaged|cannot be read as NIfTI",
    ),
    "a mask of another geometry": (
        lambda a: save(a / "masks/one.nii", np.zeros(SHAPE, np.uint8), spacing=(3, 1, 1)),
        "another shape or affine than its image one.nii",
    ),
    "a mask of fractions": (
        lambda a: save(a / "masks/one.nii", drawn() / 1000),
        "values other than 0…255",
    ),
    "a series of volumes": (
        lambda a: nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4, 3), np.uint8), np.eye(4)), a / "images/one.nii"),
        "instead of three axes",
    ),
    "values that are not finite": (
        lambda a: save(a / "images/one.nii", np.full(SHAPE, np.nan, np.float32)),
        "NaN or infinite",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_problem_of_a_volume_is_reported_by_the_check(root, benchmark, damage, words):
    assert check_benchmark(root, benchmark).ok
    damage(root / "a")
    report = check_benchmark(root, benchmark)
    assert any(re.search(words, problem) for problem in report.sites[0].problems)


@pytest.mark.parametrize("suffix", nifti.SUFFIXES)
def test_a_header_that_claims_more_slices_than_the_file_can_hold_is_refused(tmp_path, suffix):
    """A million slices in a file of a kilobyte; listing them takes seconds."""
    volume = nibabel.Nifti2Image(np.zeros((7, 6, 5), np.uint8), np.diag([-1.0, -1, 3, 1]))
    content = bytearray(volume.to_bytes())
    content[40:48] = (2**20).to_bytes(8, "little")  # dim[3]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix == ".nii.gz" else content)
    with pytest.raises(UserError, match="more than the file holds"):
        nifti.read_geometry(path)


def test_an_image_is_no_volume_to_clip(make_site, benchmark):
    case = find_sites(make_site("a", 1))["a"].cases[0]
    with pytest.raises(UserError, match=r"is no volume.*use the normalisation zscore"):
        read_case(case, benchmark)


REAL = Path(os.environ.get("TTDG_DATA", "")) / "prostate_volumes"


@pytest.mark.skipif(
    not (os.environ.get("TTDG_DATA") and REAL.is_dir()),
    reason="TTDG_DATA names no folder with prostate_volumes; the real volumes are not part of the repository",
)
def test_real_volumes_have_a_gland_inside_and_a_plausible_size(tmp_path):
    for part in ("image", "mask"):
        (tmp_path / f"px/{part}s").mkdir(parents=True)
        for path in REAL.glob(f"*_{part}.nii.gz"):
            (tmp_path / f"px/{part}s" / path.name.replace(f"_{part}", "")).symlink_to(path)
    benchmark = load_benchmark("prostate-nifti")
    assert check_benchmark(tmp_path, benchmark).ok
    site = find_sites(tmp_path)["px"]
    volumes = complete_volumes([(site, case) for case in site.cases], benchmark.size, spacing=True)
    assert len(volumes) == 2
    for volume in volumes:
        cases = [case for case in site.cases if case.volume == volume.name]
        masks = np.stack([read_case(case, benchmark)[1] for case in cases])
        millilitres = masks.sum() * np.prod(volume.spacing) / 1000
        assert 10 < millilitres < 250, "a prostate"
        y, x = (masks.any(0).any(axis).nonzero()[0].mean() / 384 for axis in (1, 0))
        assert 0.25 < y < 0.75
        assert 0.25 < x < 0.75


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("size", [2**31 - 1, -16, 0])
def test_an_extension_of_an_impossible_size_is_refused_before_it_is_allocated(tmp_path, name, size):
    image = nibabel.Nifti1Image(drawn(), np.diag([1.0, 1, 1, 1]))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"words" * 20))
    content = bytearray(image.to_bytes())
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert nifti.read_volume(path).shape == SHAPE[::-1]
    content[352:356] = size.to_bytes(4, "little", signed=True)
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(UserError, match="an extension of its header claims"):
        nifti.read_volume(path)
