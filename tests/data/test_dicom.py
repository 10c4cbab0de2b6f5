"""DICOM files: pixels as a viewer shows them, headers, series and damage."""

import io

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread, uid
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate

from ttdg.data import check_benchmark, find_sites, load_benchmark, read_image, stream
from ttdg.data.benchmark import Benchmark
from ttdg.data.dicom import NoImageError, frame_picture, frame_values, group_by_series, read_dicom_header
from ttdg.data.raster import pixel_limit
from ttdg.data.volumes.files import volume_geometry, volume_slice
from ttdg.errors import UserError

RNG = np.random.default_rng(0)
GREY = np.cumsum(RNG.integers(0, 20, (40, 64)), 1).astype(np.uint16)  # 12 bits
COLOUR = RNG.integers(0, 256, (40, 64, 3), np.uint8)
MR = "1.2.840.10008.5.1.4.1.1.4"


def grey_of(path):
    picture = frame_picture(read_dicom_header(path), 0)
    assert (picture == picture[..., :1]).all()
    return picture[..., 0].astype(int)


def test_grey_without_a_window_is_stretched_and_monochrome1_is_inverted(tmp_path, write_dicom):
    write_dicom(tmp_path / "a.dcm", GREY, bits=12)
    write_dicom(tmp_path / "b.dcm", GREY, bits=12, photometric="MONOCHROME1")
    low, high = int(GREY.min()), int(GREY.max())
    expected = np.rint((GREY - low) * 255.0 / (high - low))
    np.testing.assert_array_equal(grey_of(tmp_path / "a.dcm"), expected)
    np.testing.assert_array_equal(grey_of(tmp_path / "b.dcm"), 255 - expected)
    image = read_dicom_header(tmp_path / "b.dcm")
    np.testing.assert_array_equal(frame_values(image, 0), -GREY.astype(np.float32))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_a_window_maps_physical_values_as_the_standard_says(tmp_path, write_dicom, function):
    values = GREY.astype(np.int16) - 300
    slope, intercept, centre, width = 2.0, -1000.0, -900.0, 700.0
    write_dicom(
        tmp_path / "a.dcm", values, RescaleSlope=slope, RescaleIntercept=intercept, VOILUTFunction=function,
        WindowCenter=[centre, 1], WindowWidth=[width, 5],
    )  # fmt: skip
    x = values * slope + intercept
    if function == "SIGMOID":
        share = 1 / (1 + np.exp(-4 * (x - centre) / width))
    elif function == "LINEAR_EXACT":
        share = (x - centre) / width + 0.5
    else:
        share = (x - (centre - 0.5)) / (width - 1) + 0.5
    np.testing.assert_allclose(grey_of(tmp_path / "a.dcm"), np.clip(share, 0, 1) * 255, atol=0.51)
    assert not read_dicom_header(tmp_path / "a.dcm").needs_range


def test_pixels_of_padding_do_not_set_the_range(tmp_path, write_dicom):
    values = GREY.astype(np.int16)
    values[:5] = -2000
    write_dicom(tmp_path / "a.dcm", values, PixelPaddingValue=-2000)
    grey = grey_of(tmp_path / "a.dcm")
    assert (grey[:5] == 0).all()
    assert grey[5:].min() == 0
    assert np.median(grey[5:]) > 50


def test_grey_of_eight_bits_keeps_its_values(tmp_path, write_dicom):
    write_dicom(tmp_path / "a.dcm", (GREY // 8).astype(np.uint8))
    np.testing.assert_array_equal(grey_of(tmp_path / "a.dcm"), (GREY // 8).astype(np.uint8))


@pytest.mark.parametrize(
    "syntax",
    [None, uid.RLELossless, uid.JPEGLSLossless, uid.JPEG2000Lossless],
    ids=lambda s: s.name if s else "plain",
)
@pytest.mark.parametrize("colour", [True, False])
def test_lossless_transfer_syntaxes_give_the_stored_pixels(tmp_path, write_dicom, syntax, colour):
    pixels = np.stack([COLOUR, COLOUR[::-1]]) if colour else np.stack([GREY, GREY[::-1]])
    photometric = {"photometric": "YBR_RCT"} if colour and syntax == uid.JPEG2000Lossless else {}
    write_dicom(
        tmp_path / "a.dcm",
        pixels,
        compress=None if photometric else syntax,
        colour=colour,
        bits=8 if colour else 16,
    )
    if photometric:
        data = dcmread(tmp_path / "a.dcm")
        data.compress(syntax, generate_instance_uid=False)
        data.save_as(tmp_path / "a.dcm")
    image = read_dicom_header(tmp_path / "a.dcm")
    assert image.frames == 2
    for frame in range(2):
        found = frame_picture(image, frame) if colour else frame_values(image, frame)
        np.testing.assert_array_equal(found, pixels[frame])


def jpeg(path, write_dicom, quality=95, cut=None, size=(64, 40)):
    """A fundus photograph in JPEG baseline, as cameras store it; `cut` removes the end of its scan."""
    smooth = np.asarray(Image.fromarray(COLOUR[:6, :6]).resize((64, 40), Image.Resampling.BICUBIC))
    packed = io.BytesIO()
    Image.fromarray(smooth).resize(size).save(packed, "JPEG", quality=quality)
    content = packed.getvalue()
    if cut is not None:
        content = content[:-cut] + b"\xff\xd9"
    write_dicom(path, smooth, "1.2.840.10008.5.1.4.1.1.77.1.5.1", colour=True, photometric="YBR_FULL_422")
    data = dcmread(path)
    data.PixelData = encapsulate([content + b"\0" * (len(content) % 2)])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = uid.JPEGBaseline8Bit
    data.save_as(path)
    return smooth


def test_a_photograph_in_jpeg_is_rgb(tmp_path, write_dicom):
    smooth = jpeg(tmp_path / "a.dcm", write_dicom)
    difference = np.abs(read_image(tmp_path / "a.dcm").astype(int) - smooth)
    assert difference.mean() < 4


@pytest.mark.parametrize("damage", [{"cut": 150}, {"size": (128, 80)}])
def test_a_jpeg_with_missing_rows_or_another_size_is_refused(tmp_path, write_dicom, damage):
    jpeg(tmp_path / "a.dcm", write_dicom, **damage)
    with pytest.raises(UserError, match=r"truncated or damaged|pixels instead of"):
        read_image(tmp_path / "a.dcm")


@pytest.mark.parametrize("syntax", [None, uid.RLELossless, uid.JPEGLSLossless, uid.JPEG2000Lossless])
def test_a_truncated_file_is_refused_without_a_word_from_its_tags(tmp_path, write_dicom, syntax):
    write_dicom(tmp_path / "a.dcm", GREY, compress=syntax, name="Zebedee^Q")
    content = (tmp_path / "a.dcm").read_bytes()
    for share in (0.97, 0.9, 0.7, 0.2, 0.05):
        (tmp_path / "b.dcm").write_bytes(content[: int(len(content) * share)])
        with pytest.raises(UserError) as caught:
            read_image(tmp_path / "b.dcm")
        assert "Zebedee" not in str(caught.value)


def test_objects_without_an_image_and_impossible_claims_are_refused(tmp_path, write_dicom):
    data = write_dicom(tmp_path / "a.dcm", GREY)
    del data.Rows, data.PixelData
    data.save_as(tmp_path / "report.dcm")
    with pytest.raises(NoImageError, match="holds no image"):
        read_dicom_header(tmp_path / "report.dcm")
    write_dicom(tmp_path / "seg.dcm", GREY, "1.2.840.10008.5.1.4.1.1.66.4")
    with pytest.raises(NoImageError, match="holds a segmentation"):
        read_dicom_header(tmp_path / "seg.dcm")
    write_dicom(tmp_path / "many.dcm", GREY, NumberOfFrames=2_000_000_000)
    with pytest.raises(UserError, match="frames, which it cannot"):
        read_dicom_header(tmp_path / "many.dcm")
    with pixel_limit(100), pytest.raises(UserError, match="raise the limit of pixels"):
        read_image(tmp_path / "a.dcm")


def slices(folder, write_dicom, values, order=None, **more):
    """A series of axial slices, written in any order of names."""
    for number in order if order is not None else range(len(values)):
        write_dicom(
            folder / f"{RNG.integers(10**9)}.dcm", values[number], MR, series="1.2.5", modality="MR",
            FrameOfReferenceUID="1.2.6", ImagePositionPatient=[-40, -30, -20 + 3.0 * number],
            ImageOrientationPatient=[1, 0, 0, 0, 1, 0], PixelSpacing=[0.5, 0.25], SliceThickness=3, **more,
        )  # fmt: skip


@pytest.fixture
def volume():
    return RNG.integers(0, 1000, (5, 8, 12)).astype(np.uint16)


def test_a_series_is_sorted_by_position_and_photographs_stay_alone(tmp_path, write_dicom, volume):
    slices(tmp_path / "mr", write_dicom, volume, order=[3, 0, 4, 1, 2])
    for side in "lr":
        write_dicom(tmp_path / f"op/{side}.dcm", COLOUR, colour=True, series="1.2.7")
    images = [read_dicom_header(path) for path in sorted(tmp_path.rglob("*.dcm"))]
    groups = sorted(group_by_series(images), key=len)
    assert [len(group) for group in groups] == [1, 1, 5]
    np.testing.assert_array_equal(np.stack([frame_values(image, 0) for image in groups[2]]), volume)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"count": 3, "PixelSpacing": None}, "does not say where it lies in the patient; export"),
        ({"count": 1}, "holds a single DICOM file, .* convert the file to NIfTI"),
        ({"count": 0}, "holds 0 DICOM volumes instead of one"),
    ],
)
def test_a_folder_that_is_no_series_is_refused_with_what_is_wrong(tmp_path, write_dicom, broken, words):
    broken, place = dict(broken), {"PixelSpacing": [1, 1], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    count = broken.pop("count")
    kept = {name: value for name, value in {**place, **broken}.items() if value is not None}
    for number in range(count):
        write_dicom(
            tmp_path / f"s/{number}.dcm", GREY, MR, series="1.2.5", modality="MR", bits=12, FrameOfReferenceUID="1.2.6",
            ImagePositionPatient=[0, 0, 3 * number], **kept,
        )  # fmt: skip
    if not count:
        write_dicom(tmp_path / "s/0.dcm", GREY, "1.2.840.10008.5.1.4.1.1.66.4")
    with pytest.raises(UserError, match=words):
        volume_geometry(tmp_path / "s")


def test_a_series_is_a_case_whose_mask_may_be_nifti(tmp_path, write_dicom, volume):
    import nibabel

    slices(tmp_path / "site/images/p7", write_dicom, volume, order=[4, 2, 0, 1, 3])
    mask = (volume > 500).astype(np.uint8)
    affine = np.array([[-0.25, 0, 0, 40], [0, -0.5, 0, 30], [0, 0, 3, -20], [0, 0, 0, 1.0]])
    (tmp_path / "site/masks").mkdir()
    flipped = affine @ np.array(
        [[1, 0, 0, 0], [0, -1, 0, 7], [0, 0, 1, 0], [0, 0, 0, 1.0]]
    )  # as converters store it
    nibabel.save(
        nibabel.Nifti1Image(mask.transpose(2, 1, 0)[:, ::-1], flipped), tmp_path / "site/masks/p7.nii.gz"
    )
    folder = tmp_path / "site/images/p7"
    assert volume_geometry(folder).spacing == pytest.approx((3.0, 0.5, 0.25))
    found = np.stack([volume_slice(folder, n, clip=False)[..., 0] for n in range(5)])
    np.testing.assert_allclose(found, (volume - volume.min()) * 255.0 / np.ptp(volume), atol=0.51)
    benchmark = Benchmark.from_dict(load_benchmark("prostate-nifti").to_dict() | {"size": 16})
    assert check_benchmark(tmp_path, benchmark).ok
    cases = find_sites(tmp_path)["site"].cases
    assert [case.name for case in cases] == [f"p7_{n:04}" for n in range(5)]
    (batch,) = [loaded.batch for loaded in stream(cases, benchmark, 5)]
    rows, columns = ((np.arange(16) * 2 + 1) * side // 32 for side in (8, 12))
    np.testing.assert_array_equal(batch.masks, mask[:, rows][:, :, columns])
    next(folder.iterdir()).unlink()
    problems = check_benchmark(tmp_path, benchmark).sites[0].problems
    assert any("uneven distances" in problem or "another shape" in problem for problem in problems)


def test_frames_of_an_enhanced_image_have_their_own_place_and_rescaling(tmp_path, write_dicom, volume):
    def item(**tags):
        data = Dataset()
        for tag, value in tags.items():
            setattr(data, tag, value)
        return data

    shared = item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        PixelMeasuresSequence=[item(PixelSpacing=[0.5, 0.25], SliceThickness=3)],
    )
    frames = [
        item(
            PlanePositionSequence=[item(ImagePositionPatient=[0, 0, 3.0 * n])],
            PixelValueTransformationSequence=[item(RescaleSlope=1.0 + n, RescaleIntercept=5.0)],
        )
        for n in range(5)
    ]
    write_dicom(
        tmp_path / "a.dcm", volume, "1.2.840.10008.5.1.4.1.1.4.1", FrameOfReferenceUID="1.2.6",
        SharedFunctionalGroupsSequence=[shared], PerFrameFunctionalGroupsSequence=frames,
    )  # fmt: skip
    image = read_dicom_header(tmp_path / "a.dcm")
    assert image.placed
    assert image.positions[4] == (0, 0, 12.0)
    np.testing.assert_allclose(frame_values(image, 2), volume[2] * 3.0 + 5)
