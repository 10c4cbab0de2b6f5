"""NIfTI in, NIfTI out: the mask of each slice at its place, with the affine of the input."""

import csv

import nibabel
import numpy as np
import pytest
from PIL import Image

from ttdg.newsite import predict

CODES = ("LPS", "RAS", "SAL")


@pytest.fixture
def site(tmp_path, discs):
    """Volumes of five slices stored along different axes, one of them compressed, and a photograph between them."""
    pictures = [Image.open(discs / "west" / "images" / f"{n:02}.png").convert("L") for n in range(5)]
    values = np.stack([np.asarray(picture, np.float32) * 7 - 100 for picture in pictures])  # z, y, x
    affine = np.array([[-0.5, 0, 0, 40], [0, -0.5, 0, 30], [0, 0, 3.0, -20], [0, 0, 0, 1]])
    root = tmp_path / "site"
    root.mkdir()
    for code in CODES:
        image = nibabel.Nifti1Image(values.transpose(2, 1, 0), affine)
        turn = nibabel.orientations.ornt_transform(
            nibabel.orientations.io_orientation(affine), nibabel.orientations.axcodes2ornt(tuple(code))
        )
        image = image.as_reoriented(turn)
        image.header["descrip"] = image.header["aux_file"] = b"Quillfeather"
        image.header.set_xyzt_units("mm")
        nibabel.save(image, root / f"{code}.nii{'.gz' if code == 'RAS' else ''}")
    pictures[0].save(root / "Photo.png")
    return root


def test_the_mask_has_the_affine_of_the_input_and_each_slice_its_answer(disc_model, site, tmp_path, seen):
    outcome = predict(disc_model, site, tmp_path / "out", method="source", batch=2)
    assert (outcome.done, outcome.images, outcome.set_aside) == (4, 16, {})
    masks = {}
    for code in CODES:
        (path,) = site.glob(f"{code}.nii*")
        mask, image = nibabel.load(tmp_path / "out/masks" / path.name), nibabel.load(path)
        np.testing.assert_array_equal(mask.affine, image.affine)
        assert mask.shape == image.shape
        assert mask.get_data_dtype() == np.uint8
        assert mask.header.get_xyzt_units() == image.header.get_xyzt_units()
        assert int(mask.header["sform_code"]) == int(image.header["sform_code"])
        turn = nibabel.orientations.ornt_transform(
            nibabel.orientations.io_orientation(mask.affine), nibabel.orientations.axcodes2ornt(tuple("LPS"))
        )
        masks[code] = np.asarray(mask.as_reoriented(turn).dataobj).transpose(2, 1, 0)
    assert set(np.unique(masks["LPS"])) <= {0, 255}
    for code in CODES:  # the order of stored voxels changes no answer
        np.testing.assert_array_equal(masks[code], masks["LPS"])
    in_order = [labels for labels in seen if labels.shape == (40, 48)]
    assert len(in_order) == 16
    np.testing.assert_array_equal(masks["LPS"], np.stack(in_order[:5]) * 255)
    with (tmp_path / "out/manifest.csv").open() as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {"LPS.nii", "RAS.nii.gz", "SAL.nii", "Photo.png"}
    assert rows["RAS.nii.gz"]["frames"] == "5"
    assert len(list((tmp_path / "out/overlays/RAS").iterdir())) == 5
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"Quillfeather" not in path.read_bytes()
    for mask in (tmp_path / "out/masks").iterdir():
        if mask.name.endswith(".nii"):
            assert b"Quillfeather" not in mask.read_bytes()
    header = nibabel.load(tmp_path / "out/masks/RAS.nii.gz").header
    assert not any(
        bytes(header[field]).strip(b"\0") for field in ("descrip", "aux_file", "db_name", "intent_name")
    )


def test_a_batch_has_slices_of_one_volume(disc_model, site, tmp_path):
    """With batch statistics, a volume between others is answered as it is alone."""
    predict(disc_model, site, tmp_path / "all", method="norm", batch=3, overlays=False)
    predict(disc_model, site / "SAL.nii", tmp_path / "one", method="norm", batch=3, overlays=False)
    assert (tmp_path / "all/masks/SAL.nii").read_bytes() == (tmp_path / "one/masks/SAL.nii").read_bytes()


def test_a_damaged_volume_is_set_aside_once_and_a_changed_mask_is_kept(disc_model, site, tmp_path):
    content = (site / "SAL.nii").read_bytes()
    (site / "SAL.nii").write_bytes(content[:-1000])
    (site / "zero.nii").write_bytes(b"")
    outcome = predict(disc_model, site, tmp_path / "out", overlays=False)
    assert outcome.set_aside.keys() == {"SAL.nii", "zero.nii"}
    assert "SAL.nii is truncated or damaged" in outcome.set_aside["SAL.nii"]
    mask = tmp_path / "out/masks/LPS.nii"
    changed = mask.read_bytes()[:-1] + b"\1"
    mask.write_bytes(changed)
    (site / "SAL.nii").write_bytes(content)
    outcome = predict(disc_model, site, tmp_path / "out", overlays=False)
    assert mask.read_bytes() == changed
    assert outcome.set_aside.keys() == {"zero.nii"}
    assert outcome.done == 1
    assert (tmp_path / "out/masks/SAL.nii").exists()


def test_a_volume_that_claims_too_many_voxels_is_refused_before_it_is_decoded(disc_model, tmp_path):
    (tmp_path / "site").mkdir()
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4))
    header = bytearray(image.to_bytes())
    header[40:56] = np.array([3, 2000, 2000, 2000, 1, 1, 1, 1], "<i2").tobytes()
    (tmp_path / "site/a.nii").write_bytes(header)
    outcome = predict(disc_model, tmp_path / "site", tmp_path / "out")
    assert "8000 million voxels" in outcome.set_aside["a.nii"]


def test_a_volume_whose_mask_was_changed_or_whose_file_is_gone_is_one_file(disc_model, site, tmp_path):
    predict(disc_model, site, tmp_path / "out", method="source", overlays=False)
    mask = tmp_path / "out/masks/LPS.nii"
    mask.write_bytes(mask.read_bytes() + b"x")
    (site / "SAL.nii").unlink()
    (site / "RAS.nii.gz").write_bytes(b"")
    outcome = predict(disc_model, site, tmp_path / "out", method="source", overlays=False)
    assert (outcome.edited, outcome.removed) == (("LPS.nii",), ("SAL.nii",))
    assert outcome.unnamed == ("masks/RAS.nii.gz",)
    with (tmp_path / "out/manifest.csv").open() as file:
        statuses = {row["file"]: row["status"] for row in csv.DictReader(file)}
    assert statuses == {
        "LPS.nii": "kept", "SAL.nii": "input removed", "RAS.nii.gz": "set aside", "Photo.png": "segmented"
    }  # fmt: skip


def test_a_volume_that_gets_lost_slices_back_gets_a_mask_of_all_of_them(disc_model, tmp_path):
    path, out = tmp_path / "in" / "v.nii.gz", tmp_path / "out"
    path.parent.mkdir()
    for depth in (5, 3, 5, 5):
        values = (np.indices((40, 48, depth)).sum(0) * 3).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
        outcome = predict(disc_model, path.parent, out, method="source", overlays=False)
        assert nibabel.load(out / "masks/v.nii.gz").shape == (40, 48, depth)
        assert not any("by hand" in remark for remark in outcome.remarks)
    assert not (out / "parts").exists()
