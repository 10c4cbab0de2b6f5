"""Every pixel mode and format is read back from a file; every kind of damage gives one sentence."""

import hashlib
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ttdg.data.readers import READERS, read_image, read_image_and_digest, read_mask
from ttdg.errors import UserError

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (13, 17, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (13, 17), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (13, 17), dtype=np.uint8)
DEEP_GREY = RNG.integers(200, 4000, (13, 17), dtype=np.uint16)
DEEP_RGB = RNG.integers(200, 4000, (13, 17, 3), dtype=np.uint16)
LOSSLESS = (".png", ".bmp", ".tif", ".tiff")


def stretched(values: np.ndarray) -> np.ndarray:
    """The documented rule, by interpolation."""
    ends = [float(values.min()), float(values.max())]
    return np.rint(np.interp(values.astype(float), ends, [0, 255])).astype(np.uint8)


def png16(path: Path, values: np.ndarray) -> Path:
    """A 16-bit colour PNG, which Pillow reads but cannot write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def save(path: Path, picture: Image.Image, **options: object) -> Path:
    picture.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", LOSSLESS)
def test_8_bit_colour_and_grey_come_back_as_they_were(tmp_path: Path, suffix: str):
    colour = read_image(save(tmp_path / f"colour{suffix}", Image.fromarray(RGB)))
    grey = read_image(save(tmp_path / f"grey{suffix}", Image.fromarray(GREY)))
    np.testing.assert_array_equal(colour, RGB)
    np.testing.assert_array_equal(grey, np.repeat(GREY[..., None], 3, axis=2))


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_jpeg_comes_back_nearly_as_it_was(tmp_path: Path, suffix: str):
    smooth = np.linspace(0, 255, 32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    path = save(tmp_path / f"a{suffix}", Image.fromarray(smooth), quality=95, subsampling=0)
    assert np.abs(read_image(path).astype(int) - smooth).max() <= 8


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_alpha_is_dropped(tmp_path: Path, suffix: str):
    rgba = Image.fromarray(np.dstack([RGB, ALPHA]), "RGBA")
    np.testing.assert_array_equal(read_image(save(tmp_path / f"a{suffix}", rgba)), RGB)
    la = Image.fromarray(np.dstack([GREY, ALPHA]), "LA")
    np.testing.assert_array_equal(read_image(save(tmp_path / f"b{suffix}", la))[..., 0], GREY)


@pytest.mark.parametrize("suffix", LOSSLESS)
def test_palette_images_show_their_colours(tmp_path: Path, suffix: str):
    palette = Image.fromarray(RGB).quantize(16)
    expected = np.asarray(palette.convert("RGB"))
    np.testing.assert_array_equal(read_image(save(tmp_path / f"a{suffix}", palette)), expected)


@pytest.mark.parametrize("suffix", LOSSLESS)
def test_1_bit_images_and_masks_are_black_and_white(tmp_path: Path, suffix: str):
    path = save(tmp_path / f"a{suffix}", Image.fromarray(GREY > 127))
    expected = np.where(GREY > 127, 255, 0)
    np.testing.assert_array_equal(read_mask(path), expected)
    np.testing.assert_array_equal(read_image(path)[..., 1], expected)


@pytest.mark.parametrize("kind", ["png", "little", "big", "zlib", "float", "white is zero"])
def test_deep_grey_is_stretched_from_darkest_to_brightest(tmp_path: Path, kind: str):
    path, expected = tmp_path / "a.tif", stretched(DEEP_GREY)
    if kind == "png":
        path = save(tmp_path / "a.png", Image.fromarray(DEEP_GREY))
    elif kind == "float":
        tifffile.imwrite(path, DEEP_GREY.astype(np.float32) / 65535)
    elif kind == "white is zero":
        tifffile.imwrite(path, DEEP_GREY, photometric="miniswhite")
        expected = 255 - expected
    else:
        order = ">" if kind == "big" else "<"
        tifffile.imwrite(path, DEEP_GREY, byteorder=order, compression="zlib" if kind == "zlib" else None)
    np.testing.assert_array_equal(read_image(path), np.repeat(expected[..., None], 3, axis=2))


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"byteorder": ">"}])
def test_deep_colour_tiff_keeps_all_its_bits(tmp_path: Path, options: dict):
    tifffile.imwrite(tmp_path / "a.tif", DEEP_RGB, photometric="rgb", **options)
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif"), stretched(DEEP_RGB))


def test_deep_colour_tiff_in_separate_planes_or_with_alpha_is_read(tmp_path: Path):
    planes = np.ascontiguousarray(DEEP_RGB.transpose(2, 0, 1))
    tifffile.imwrite(tmp_path / "a.tif", planes, photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif"), stretched(DEEP_RGB))
    rgba = np.dstack([DEEP_RGB, np.zeros_like(DEEP_GREY)])
    tifffile.imwrite(tmp_path / "b.tif", rgba, photometric="rgb", extrasamples=["unassalpha"])
    np.testing.assert_array_equal(read_image(tmp_path / "b.tif"), stretched(DEEP_RGB))


def test_deep_colour_png_is_read_by_its_high_bytes_or_refused(tmp_path: Path):
    full = RNG.integers(0, 65536, (13, 17, 3), dtype=np.uint16)
    difference = read_image(png16(tmp_path / "a.png", full)).astype(int) - stretched(full)
    assert np.abs(difference).max() <= 1
    with pytest.raises(UserError, match=r"b\.png.*save it as 8 bit"):
        read_image(png16(tmp_path / "b.png", DEEP_RGB))


def test_deep_colour_tiff_falls_back_to_high_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = RNG.integers(0, 65536, (13, 17, 3), dtype=np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", full, photometric="rgb")

    def unknown_compression(self: object) -> None:
        raise ValueError("LZW requires another package")

    monkeypatch.setattr(tifffile.TiffPage, "asarray", unknown_compression)
    difference = read_image(tmp_path / "a.tif").astype(int) - stretched(full)
    assert np.abs(difference).max() <= 1


def test_a_constant_deep_image_is_black_and_not_a_number_is_an_error(tmp_path: Path):
    tifffile.imwrite(tmp_path / "a.tif", np.full((5, 6), 700, np.uint16))
    assert not read_image(tmp_path / "a.tif").any()
    tifffile.imwrite(tmp_path / "b.tif", np.full((5, 6), np.nan, np.float32))
    with pytest.raises(UserError, match=r"b\.tif holds NaN"):
        read_image(tmp_path / "b.tif")


UPRIGHT = {  # EXIF orientation → what undoes it
    1: lambda a: a, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud,
    5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1), 8: np.rot90,
}  # fmt: skip


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["8 bit", "8 bit grey", "16 bit grey", "16 bit colour", "png"])
def test_pictures_are_turned_upright_once(tmp_path: Path, orientation: int, kind: str):
    path = tmp_path / "a.tif"
    values = {"8 bit grey": GREY, "16 bit grey": DEEP_GREY, "16 bit colour": DEEP_RGB}.get(kind, RGB)
    if kind == "png":
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = save(tmp_path / "a.png", Image.fromarray(RGB), exif=exif)
    else:
        tags = [(274, "H", 1, orientation, True)]
        tifffile.imwrite(path, values, photometric="rgb" if values.ndim == 3 else None, extratags=tags)
    upright = UPRIGHT[orientation](values if values.dtype == np.uint8 else stretched(values))
    if upright.ndim == 2:
        upright = np.repeat(upright[..., None], 3, axis=2)
    np.testing.assert_array_equal(read_image(path), upright)


def test_a_rotated_jpeg_has_its_sides_exchanged(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(save(tmp_path / "a.jpg", Image.fromarray(RGB), exif=exif)).shape == (17, 13, 3)


def test_cmyk_is_read_as_colour(tmp_path: Path):
    path = save(tmp_path / "a.tif", Image.fromarray(RGB).convert("CMYK"))
    np.testing.assert_array_equal(read_image(path), RGB)


# --- masks


@pytest.mark.parametrize("suffix", LOSSLESS)
def test_grey_masks_come_back_as_they_were(tmp_path: Path, suffix: str):
    np.testing.assert_array_equal(read_mask(save(tmp_path / f"a{suffix}", Image.fromarray(GREY))), GREY)
    equal = Image.fromarray(np.repeat(GREY[..., None], 3, axis=2))
    np.testing.assert_array_equal(read_mask(save(tmp_path / f"b{suffix}", equal)), GREY)


def test_masks_ignore_alpha(tmp_path: Path):
    la = Image.fromarray(np.dstack([GREY, ALPHA]), "LA")
    np.testing.assert_array_equal(read_mask(save(tmp_path / "a.png", la)), GREY)
    rgba = Image.fromarray(np.dstack([GREY, GREY, GREY, ALPHA]), "RGBA")
    np.testing.assert_array_equal(read_mask(save(tmp_path / "b.png", rgba)), GREY)


def test_a_coloured_palette_holds_labels_and_a_grey_one_holds_greys(tmp_path: Path):
    indices = Image.fromarray(GREY % 3)
    indices.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    np.testing.assert_array_equal(read_mask(save(tmp_path / "a.png", indices)), GREY % 3)
    indices.putpalette([255, 255, 255, 128, 128, 128, 0, 0, 0])
    expected = np.array([255, 128, 0])[GREY % 3]
    np.testing.assert_array_equal(read_mask(save(tmp_path / "b.png", indices)), expected)


def test_16_bit_masks_must_stay_within_a_byte(tmp_path: Path):
    path = save(tmp_path / "a.png", Image.fromarray(GREY.astype(np.uint16)))
    np.testing.assert_array_equal(read_mask(path), GREY)
    with pytest.raises(UserError, match=r"b\.png is a mask with more than 8 bits"):
        read_mask(save(tmp_path / "b.png", Image.fromarray(DEEP_GREY)))
    with pytest.raises(UserError, match=r"c\.png is a mask with more than 8 bits"):
        read_mask(png16(tmp_path / "c.png", np.repeat(GREY[..., None], 3, axis=2)))


def test_coloured_masks_are_refused_but_not_the_colour_noise_of_jpeg(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.png is a coloured mask"):
        read_mask(save(tmp_path / "a.png", Image.fromarray(RGB)))
    halves = np.zeros((32, 32, 3), np.uint8)
    halves[:, 16:] = (255, 255, 252)
    mask = read_mask(save(tmp_path / "b.jpg", Image.fromarray(halves)))
    np.testing.assert_array_equal(mask > 127, halves[..., 0] > 127)


# --- unreadable files


def test_every_suffix_of_the_table_is_read_twice_with_equal_values(tmp_path: Path):
    for suffix in READERS.keys() - {".dcm"}:  # DICOM has its own tests
        path = save(tmp_path / f"a{suffix}", Image.fromarray(RGB))
        np.testing.assert_array_equal(read_image(path), read_image(path))


@pytest.mark.parametrize("kind", ["jpeg", "16-bit tiff"])
def test_an_image_comes_with_the_digest_of_its_file(tmp_path: Path, kind: str):
    path = tmp_path / ("a.jpg" if kind == "jpeg" else "a.tif")
    if kind == "jpeg":
        save(path, Image.fromarray(RGB))
    else:
        tifffile.imwrite(path, DEEP_RGB, photometric="rgb")
    image, digest = read_image_and_digest(path)
    np.testing.assert_array_equal(image, read_image(path))
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path):
    with pytest.raises(UserError, match=r"a\.gif is of no known type; convert it to one of \.png"):
        read_image(tmp_path / "a.gif")


def test_missing_empty_and_foreign_files_are_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot open .*a\.png"):
        read_image(tmp_path / "a.png")
    (tmp_path / "b.png").touch()
    with pytest.raises(UserError, match=r"b\.png is empty"):
        read_mask(tmp_path / "b.png")
    (tmp_path / "c.png").write_text("not a picture")
    with pytest.raises(UserError, match=r"c\.png is no PNG"):
        read_image(tmp_path / "c.png")
    Image.fromarray(RGB).save(tmp_path / "d.png", format="GIF")
    with pytest.raises(UserError, match=r"d\.png is no PNG"):
        read_image(tmp_path / "d.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif"])
def test_a_truncated_picture_is_named(tmp_path: Path, suffix: str):
    path = save(tmp_path / f"a{suffix}", Image.fromarray(np.tile(RGB, (4, 4, 1))))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"a\{suffix} is (truncated|no PNG)"):
        read_image(path)


def test_many_pages_are_refused(tmp_path: Path):
    tifffile.imwrite(tmp_path / "a.tif", np.stack([GREY] * 3), photometric="minisblack")
    with pytest.raises(UserError, match="holds 3 pages"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("side", [11_000, 60_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path, side: int):
    """Between Pillow's warning and its error (11,000²) and beyond both; PNG and TIFF with a false header."""
    png = bytearray(save(tmp_path / "a.png", Image.fromarray(GREY)).read_bytes())
    png[16:24] = struct.pack(">II", side, side)
    png[29:33] = struct.pack(">I", zlib.crc32(bytes(png[12:29])))
    (tmp_path / "a.png").write_bytes(png)
    tifffile.imwrite(tmp_path / "a.tif", GREY)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        for tag in ("ImageWidth", "ImageLength"):
            file.pages[0].tags[tag].overwrite(side)
    for path in (tmp_path / "a.png", tmp_path / "a.tif"):
        with pytest.raises(UserError, match=r"claims more than \d+ megapixels"):
            read_image(path)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    suffix=st.sampled_from([".png", ".jpg", ".bmp", ".tif", "16.tif"]),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=12),
    read=st.sampled_from([read_image, read_mask]),
)
def test_a_damaged_file_is_read_or_refused_in_words(tmp_path: Path, suffix: str, flips: list, read):
    path = tmp_path / f"a{suffix}"
    if suffix == "16.tif":
        tifffile.imwrite(path, DEEP_RGB, photometric="rgb")
    else:
        save(path, Image.fromarray(RGB))
    body = bytearray(path.read_bytes())
    for place, value in flips:
        body[place % len(body)] = value
    path.write_bytes(body)
    with suppress(UserError):
        assert read(path).dtype == np.uint8
