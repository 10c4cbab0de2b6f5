"""Files that decode without an error although rows are missing are refused; complete files that look alike are not."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from ttdg.data import Benchmark, check_benchmark
from ttdg.data.raster import read_reduced_image
from ttdg.data.readers import read_image, read_mask
from ttdg.errors import UserError

RNG = np.random.default_rng(0)
SMOOTH = np.kron(RNG.integers(40, 200, (6, 6, 3)), np.ones((8, 8, 1))).astype(np.uint8)  # 48 × 48
BLACK_BELOW = np.where(np.arange(48)[:, None, None] < 24, SMOOTH, 0).astype(np.uint8)


def png(path: Path, rows: np.ndarray, height: int) -> Path:
    """An RGB PNG whose header says `height`, with the given rows in one complete compressed stream."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", rows.shape[1], height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    body = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def cut_jpeg(path: Path, image: np.ndarray, keep: float, **options: object) -> Path:
    """A JPEG of which a part of the compressed data is left, followed by a proper end."""
    Image.fromarray(image).save(buffer := io.BytesIO(), format="JPEG", **options)
    data = buffer.getvalue()
    start = data.index(b"\xff\xda") + 14
    path.write_bytes(data[: start + int(keep * (len(data) - 2 - start))] + b"\xff\xd9")
    return path


def without_last_strips(path: Path, tag: str) -> Path:
    """Remove the last entries of a list of strips or tiles."""
    with tifffile.TiffFile(path, mode="r+b") as file:
        places = file.pages[0].tags[tag]
        places.overwrite(places.value[:1])
    return path


def test_a_png_whose_data_end_early_is_refused(tmp_path: Path):
    path = png(tmp_path / "a.png", SMOOTH[:30], 48)
    for read in (read_image, read_mask):
        with pytest.raises(UserError, match=r"a\.png is truncated .*4,350 of 6,960 bytes"):
            read(path)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "I;16"])
def test_a_complete_png_with_black_rows_is_read(tmp_path: Path, mode: str):
    grey = BLACK_BELOW[..., 0]
    picture = (
        Image.fromarray(grey.astype(np.uint16))
        if mode == "I;16"
        else Image.fromarray(BLACK_BELOW).convert(mode)
    )
    picture.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (48, 48, 3)


def test_an_interlaced_png_is_complete_with_all_passes(tmp_path: Path):
    """Adam7, written by hand for 3 × 3 grey pixels: five of the seven passes hold a pixel."""
    passes = (b"\0\x07", b"", b"", b"\0\x09", b"\0\x05\x06", b"\0\x08\0\x04", b"\0\x03\x02\x01")

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def write(parts: tuple[bytes, ...]) -> Path:
        body = chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 3, 8, 0, 0, 0, 1))
        body += chunk(b"IDAT", zlib.compress(b"".join(parts))) + chunk(b"IEND", b"")
        (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
        return tmp_path / "a.png"

    np.testing.assert_array_equal(read_mask(write(passes)), [[7, 8, 9], [3, 2, 1], [5, 4, 6]])
    with pytest.raises(UserError, match="truncated"):
        read_mask(write(passes[:5]))


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_whose_data_end_early_is_refused(tmp_path: Path, keep: float, progressive: bool):
    with pytest.raises(UserError, match=r"a\.jpg is truncated"):
        read_image(cut_jpeg(tmp_path / "a.jpg", SMOOTH, keep, progressive=progressive))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"quality": 100, "subsampling": 0},
        {"restart_marker_blocks": 2},
        {"optimize": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("image", [SMOOTH, BLACK_BELOW, BLACK_BELOW[:45, :41], BLACK_BELOW[..., 0]])
def test_a_complete_jpeg_is_read_as_pillow_reads_it(tmp_path: Path, image: np.ndarray, options: dict):
    Image.fromarray(image).save(tmp_path / "a.jpg", **options)
    with Image.open(tmp_path / "a.jpg") as picture:
        np.testing.assert_array_equal(read_image(tmp_path / "a.jpg"), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("keep", [0.4, 0.95])
def test_a_large_jpeg_whose_data_end_early_is_refused_at_a_smaller_scale(tmp_path: Path, keep: float):
    large = np.kron(SMOOTH, np.ones((5, 5, 1))).astype(np.uint8)
    path = cut_jpeg(tmp_path / "large.jpg", large, keep)
    with path.open("rb") as file, pytest.raises(UserError, match="before the last row"):
        read_reduced_image(file, path, 32)


def test_a_thumbnail_in_a_jpeg_is_not_its_end(tmp_path: Path):
    Image.fromarray(SMOOTH[:8, :8]).save(thumbnail := io.BytesIO(), format="JPEG")
    Image.fromarray(BLACK_BELOW).save(tmp_path / "a.jpg", comment=thumbnail.getvalue())
    assert read_image(tmp_path / "a.jpg").shape == (48, 48, 3)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_tiff_without_its_last_strips_or_tiles_is_refused(tmp_path: Path, compression: str | None):
    strips, tiles = tmp_path / "strips.tif", tmp_path / "tiles.tif"
    tifffile.imwrite(strips, SMOOTH, photometric="rgb", rowsperstrip=16, compression=compression)
    tifffile.imwrite(tiles, SMOOTH, photometric="rgb", tile=(16, 16), compression=compression)
    np.testing.assert_array_equal(read_image(strips), SMOOTH)
    np.testing.assert_array_equal(read_image(tiles), SMOOTH)
    with pytest.raises(UserError, match="holds 1 of 3 strips"):
        read_image(without_last_strips(strips, "StripOffsets"))
    with pytest.raises(UserError, match="holds 1 of 9 tiles"):
        read_image(without_last_strips(tiles, "TileOffsets"))


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_tiff_whose_header_claims_more_rows_is_refused(tmp_path: Path, compression: str | None):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, SMOOTH, photometric="rgb", compression=compression)
    with tifffile.TiffFile(path, mode="r+b") as file:
        for tag in ("ImageLength", "RowsPerStrip"):
            file.pages[0].tags[tag].overwrite(480)
    with pytest.raises(UserError, match=r"a\.tif is truncated"):
        read_image(path)


@pytest.mark.parametrize(
    "empty", [(0, 6912 // 3, 6912 // 3), (100, 100, 100)], ids=["empty strip", "short strips"]
)
def test_a_tiff_with_strips_that_are_too_short_is_refused(tmp_path: Path, empty: tuple[int, ...]):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, SMOOTH, photometric="rgb", rowsperstrip=16)
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["StripByteCounts"].overwrite(empty)
    with pytest.raises(UserError, match=r"a\.tif is truncated"):
        read_image(path)


def test_pages_are_counted_up_to_a_limit(tmp_path: Path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for _ in range(120):
            file.write(np.zeros((1, 1), np.uint8), contiguous=False)
    with pytest.raises(UserError, match="holds at least 100 pages"):
        read_image(tmp_path / "a.tif")


def test_the_check_of_a_benchmark_finds_missing_rows(tmp_path: Path, fundus: Benchmark):
    site = tmp_path / "site"
    for folder in ("images", "masks"):
        (site / folder).mkdir(parents=True)
    png(site / "images" / "a.png", SMOOTH[:20], 48)
    Image.fromarray(np.zeros((48, 48), np.uint8)).save(site / "masks" / "a.png")
    (problem,) = check_benchmark(tmp_path, fundus).sites[0].problems
    assert "a.png is truncated" in problem
