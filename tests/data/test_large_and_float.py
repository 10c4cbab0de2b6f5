"""Images of unusual types and sizes: float TIFF, WebP, and images that are scaled down while they are decoded."""

import threading
import tracemalloc

import numpy as np
import pytest
import tifffile
from PIL import Image

from ttdg.data import read_image
from ttdg.data.raster import pixel_limit, read_reduced_image
from ttdg.data.threads import Budget
from ttdg.errors import UserError

RNG = np.random.default_rng(0)


def gradient(height, width):
    y, x = np.mgrid[:height, :width]
    return np.stack([255 * y / height, 255 * x / width, 255 * (y + x) / (height + width)], -1).astype(
        np.uint8
    )


def stretched(values):
    values = values.astype(np.float64)
    return np.rint(255 * (values - values.min()) / (values.max() - values.min())).astype(np.uint8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("planar", [False, True])
def test_float_tiffs_are_stretched_from_their_smallest_to_their_largest_value(
    tmp_path, dtype, channels, planar
):
    values = (RNG.random((20, 30, channels)) * 5 - 2).astype(dtype)
    stored = values[..., 0] if channels == 1 else np.moveaxis(values, -1, 0) if planar else values
    layout = (
        {} if channels == 1 else {"photometric": "rgb", "planarconfig": "separate" if planar else "contig"}
    )
    tifffile.imwrite(tmp_path / "a.tif", stored, **layout)
    expected = stretched(values[..., :3] if channels > 1 else values)
    assert np.array_equal(read_image(tmp_path / "a.tif"), np.broadcast_to(expected, (20, 30, 3)))


def test_a_float_tiff_is_turned_upright_and_one_with_nan_is_refused(tmp_path):
    values = RNG.random((4, 6, 3)).astype(np.float32)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb", extratags=[(274, 3, 1, 6, True)])
    assert np.array_equal(read_image(tmp_path / "a.tif"), np.rot90(stretched(values), -1))
    values[0, 0, 0] = np.nan
    tifffile.imwrite(tmp_path / "b.tif", values, photometric="rgb")
    with pytest.raises(UserError, match="NaN or infinite"):
        read_image(tmp_path / "b.tif")


def test_a_float_tiff_above_the_pixel_limit_is_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((20, 30, 3), np.float32), photometric="rgb")
    with pixel_limit(500), pytest.raises(UserError, match="raise the limit of pixels"):
        read_image(tmp_path / "a.tif")
    assert read_image(tmp_path / "a.tif").shape == (20, 30, 3)  # the limit ends with the block


def test_webp_is_read(tmp_path):
    pixels = gradient(20, 30)
    Image.fromarray(pixels).save(tmp_path / "a.webp", lossless=True)
    assert np.array_equal(read_image(tmp_path / "a.webp"), pixels)


@pytest.mark.parametrize(
    "name", ["a.jpg", "a.png", "a.tif", "a.bmp", "a.webp", "deep.png", "deep.tif", "float.tif"]
)
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_large_image_is_scaled_down_upright_and_its_size_is_that_of_the_file(tmp_path, name, orientation):
    pixels, exif = gradient(200, 330), Image.Exif()
    exif[0x0112] = orientation
    tag = [(274, 3, 1, orientation, True)]
    if name == "float.tif":
        tifffile.imwrite(tmp_path / name, pixels.astype(np.float32), photometric="rgb", extratags=tag)
    elif name == "deep.tif":
        tifffile.imwrite(tmp_path / name, pixels.astype(np.uint16), photometric="rgb", extratags=tag)
    elif name == "deep.png":
        Image.fromarray(pixels[..., 0].astype(np.uint16) * 256).save(tmp_path / name, exif=exif)
    else:
        Image.fromarray(pixels).save(tmp_path / name, **({} if name == "a.bmp" else {"exif": exif}))
    whole = read_image(tmp_path / name)
    with (tmp_path / name).open("rb") as file:
        small, size = read_reduced_image(file, tmp_path / name, 50)
    assert size == whole.shape[:2]
    assert 50 <= min(small.shape[:2]) < min(size) / 2
    shown = Image.fromarray(whole).resize(small.shape[1::-1], Image.Resampling.BOX)
    assert np.abs(small.astype(int) - np.asarray(shown)).max() <= 12


def test_an_image_that_is_not_large_is_read_exactly(tmp_path):
    Image.fromarray(gradient(99, 100)).save(tmp_path / "a.jpg")
    with (tmp_path / "a.jpg").open("rb") as file:
        assert np.array_equal(
            read_reduced_image(file, tmp_path / "a.jpg", 50)[0], read_image(tmp_path / "a.jpg")
        )


def test_a_budget_is_never_exceeded_and_an_item_above_it_runs_alone():
    budget, held, most, lock = Budget(10), [0], [0], threading.Lock()

    def work(units):
        for _ in range(50):
            with budget.hold(units):
                with lock:
                    held[0] += min(units, 10)
                    most[0] = max(most[0], held[0])
                with lock:
                    held[0] -= min(units, 10)

    threads = [threading.Thread(target=work, args=(units,)) for units in (3, 4, 6, 25, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 0 < most[0] <= 10


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_large_image_of_16_bits_is_never_held_in_8_bits_at_its_full_size(tmp_path, compression):
    side = 3000
    values = np.linspace(0, 4000, 3 * side * side, dtype=np.uint16).reshape(side, side, 3)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb", compression=compression, rowsperstrip=64)
    read_image(tmp_path / "a.tif")  # loads what Pillow and tifffile keep
    tracemalloc.start()
    with (tmp_path / "a.tif").open("rb") as file:
        image, size = read_reduced_image(file, tmp_path / "a.tif", 256)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (image.shape, size) == ((side // 11 + 1, side // 11 + 1, 3), (side, side))
    assert peak < 1.25 * values.nbytes


def test_a_png_whose_chunk_claims_gigabytes_allocates_no_more_than_the_file(tmp_path):
    Image.fromarray(gradient(20, 30)).save(tmp_path / "a.png")
    content = bytearray((tmp_path / "a.png").read_bytes())
    at = content.index(b"IDAT")
    content[at - 4 : at] = b"\xff\xff\xff\xff"
    (tmp_path / "a.png").write_bytes(content)
    tracemalloc.start()
    assert np.array_equal(read_image(tmp_path / "a.png"), gradient(20, 30))  # the pixels are all there
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
