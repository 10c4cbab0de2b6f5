"""What headers of NIfTI files say: units, sheared axes, two forms of the place, and data types without numbers."""

import nibabel
import numpy as np
import pytest

from ttdg.data import check_benchmark, complete_volumes, find_sites, load_benchmark
from ttdg.data.volumes import nifti
from ttdg.data.volumes.nifti_writing import write_mask
from ttdg.errors import UserError

SHAPE = (12, 8, 5)  # x, y, z
AFFINE = np.diag([-0.25, -0.5, 3.0, 1.0])
COLOURS = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])


def volume(affine=AFFINE, dtype=np.float32):
    values = np.random.default_rng(0).integers(0, 255, SHAPE).astype(np.float32)
    return nibabel.Nifti1Image(values.astype(dtype), affine)


@pytest.fixture
def save(tmp_path):
    """Save an image, or one with its mask, as the only volume of the site `a`."""

    def write(image, mask=None):
        (tmp_path / "a/images").mkdir(parents=True, exist_ok=True)
        nibabel.save(image, tmp_path / "a/images/v.nii.gz")
        if mask is not None:
            (tmp_path / "a/masks").mkdir(exist_ok=True)
            nibabel.save(mask, tmp_path / "a/masks/v.nii.gz")
        return tmp_path / "a/images/v.nii.gz"

    return write


@pytest.mark.parametrize(("unit", "factor"), [("mm", 1), ("meter", 1000), ("micron", 1e-3), ("unknown", 1)])
def test_the_spacing_is_in_millimetres_whatever_the_unit_of_the_header(unit, factor, save):
    image = volume(np.diag([-0.25 / factor, -0.5 / factor, 3.0 / factor, 1.0]))
    image.header.set_xyzt_units(unit, "sec")
    assert nifti.read_geometry(save(image)).spacing == pytest.approx((3.0, 0.5, 0.25))


def test_a_unit_that_no_code_stands_for_is_read_as_millimetres(save, tmp_path):
    image = volume()
    image.header["xyzt_units"] = 7
    path = save(image)
    assert nifti.read_geometry(path).spacing == pytest.approx((3.0, 0.5, 0.25))
    write_mask(tmp_path / "mask.nii.gz", path, np.ones(SHAPE[::-1], np.uint8))
    assert nibabel.load(tmp_path / "mask.nii.gz").shape == SHAPE


def test_sheared_axes_have_no_distances_in_millimetres_and_turned_ones_have(save, tmp_path):
    shear, turn = np.eye(4), np.eye(4)
    shear[1, 2] = 0.3
    turn[1:3, 1:3] = [[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]]
    for change, known in ((shear, False), (turn, True)):
        path = save(volume(change @ AFFINE))
        site = find_sites(tmp_path)["a"]
        (found,) = complete_volumes([(site, case) for case in site.cases], 8, spacing=True)
        assert (found.spacing is not None) is known
        assert len(site.cases) == SHAPE[2]
        path.unlink()


def test_a_mask_has_both_forms_of_the_place_of_its_image(save, tmp_path):
    image = volume()
    moved = AFFINE.copy()
    moved[:3, 3] = 40, -30, 7
    image.set_sform(moved, 4)
    image.set_qform(AFFINE, 1)
    path = save(image)
    write_mask(tmp_path / "mask.nii.gz", path, np.ones(SHAPE[::-1], np.uint8))
    mask = nibabel.load(tmp_path / "mask.nii.gz")
    for form in ("sform", "qform"):
        theirs, code = getattr(nibabel.load(path), f"get_{form}")(coded=True)
        mine, own = getattr(mask, f"get_{form}")(coded=True)
        np.testing.assert_array_equal(mine, theirs)
        assert own == code


@pytest.mark.parametrize(("dtype", "words"), [(np.complex64, "complex numbers"), (COLOURS, "colours")])
def test_volumes_without_one_number_for_each_voxel_are_refused_and_nothing_is_discarded(dtype, words, save):
    path = save(volume(dtype=dtype))
    with pytest.raises(UserError, match=f"holds {words} instead of one number for each voxel; save"):
        nifti.read_geometry(path)


def test_a_problem_of_a_volume_is_said_once_and_not_for_each_slice(save, tmp_path):
    image = volume()
    values = np.asarray(image.dataobj).copy()
    values[0, 0, 0] = np.nan
    mask = nibabel.Nifti1Image(np.full(SHAPE, 7, np.uint8), AFFINE)
    save(nibabel.Nifti1Image(values, AFFINE), mask)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    report = check_benchmark(tmp_path, load_benchmark("synthetic-prostate"))
    for site in report.sites:
        assert [problem for problem in site.problems if "NaN" in problem] == [
            f"{tmp_path / site.name}/images/v.nii.gz holds NaN or infinite pixel values; export it as 8 or 16 bit"
        ]


def test_an_image_in_two_sites_is_said_once_for_a_volume(save, tmp_path):
    save(volume(), nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE))
    (tmp_path / "b").symlink_to(tmp_path / "a")
    report = check_benchmark(tmp_path, load_benchmark("prostate-nifti"))
    shared = [
        problem for site in report.sites for problem in site.problems if "shows the same image" in problem
    ]
    assert len(shared) == 1


def test_the_place_for_a_missing_mask_of_a_volume_is_that_of_a_volume(save, tmp_path):
    save(volume())
    (tmp_path / "a/masks").mkdir()
    with pytest.raises(UserError, match=r"has no mask; put one at .*masks/v\.nii\.gz"):
        find_sites(tmp_path)
