"""Previews of images, and outlines of their masks as SVG paths. No byte of an original file is kept."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from ttdg.adaptation.adapter import Logits
from ttdg.data import Benchmark
from ttdg.data.unlabelled import NewBatch, NewImage
from ttdg.files import atomic_file, write_text
from ttdg.newsite.answers import label_pixels

PREVIEW, THUMBNAIL = 768, 96  # pixels of the longer side


def image_key(file: str) -> str:
    """Return the identifier of an image in addresses, which says nothing of its path."""
    return hashlib.sha256(file.encode(errors="surrogateescape")).hexdigest()[:16]


def show_batch(folder: Path, batch: NewBatch, source: Logits, adapted: Logits, benchmark: Benchmark) -> None:
    """Write the previews and both contours of each image of a batch."""
    for image, before, after in zip(batch.files, source, adapted, strict=True):
        write_previews(folder, image)
        outlines = draw_outlines(image, before, after, benchmark)
        write_text(folder / f"{image_key(image.file)}.json", json.dumps(outlines))


def write_previews(folder: Path, image: NewImage) -> None:
    """Write the preview and the thumbnail of an image."""
    assert image.picture is not None
    key, picture = image_key(image.file), Image.fromarray(image.picture)
    for side, suffix in ((THUMBNAIL, ".small.jpg"), (PREVIEW, ".jpg")):
        _save_jpeg(folder / f"{key}{suffix}", picture, side)


def draw_outlines(
    image: NewImage,
    source: Float[torch.Tensor, "l s s"],
    adapted: Float[torch.Tensor, "l s s"],
    benchmark: Benchmark,
) -> dict[str, Any]:
    """Return both contours of an image, in pixels of its preview, and how far they agree."""
    assert image.picture is not None
    height, width = _fitted(image.picture.shape[:2], PREVIEW)
    before, after = (label_pixels(logits, (height, width))[0] for logits in (source, adapted))
    return {
        "width": width,
        "height": height,
        "source": region_paths(before, benchmark),
        "adapted": region_paths(after, benchmark),
        "agreement": foreground_dice(before, after),
    }


def read_outlines(folder: Path, key: str) -> dict[str, Any]:
    """Return the contours of an image, as `show_batch` or `outline_mask` wrote them."""
    found = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
    return dict(found)


def outline_mask(folder: Path, key: str, mask: Path, benchmark: Benchmark) -> None:
    """Replace the adapted contour by that of a mask file, which a user has corrected."""
    outlines = read_outlines(folder, key)
    greys = np.asarray(
        Image.open(mask).resize((outlines["width"], outlines["height"]), Image.Resampling.NEAREST)
    )
    labels = np.zeros(greys.shape, np.uint8)
    for label, grey in enumerate(benchmark.greys):
        labels[greys == grey] = label
    write_text(folder / f"{key}.json", json.dumps({**outlines, "adapted": region_paths(labels, benchmark)}))


def region_paths(labels: UInt8[np.ndarray, "h w"], benchmark: Benchmark) -> dict[str, str]:
    """Return the outline of each region as the data of an SVG path in pixels."""
    return {
        name: outline(np.isin(labels, [int(i) for i in members]))
        for name, members in benchmark.regions.items()
    }


def outline(inside: np.ndarray) -> str:
    """Return the border of a region as the data of an SVG path; an empty text for an empty region."""
    from contourpy import contour_generator

    padded = np.pad(inside.astype(np.float32), 1)
    lines = contour_generator(z=padded, line_type="Separate").lines(0.5)
    return "".join(_path(np.asarray(line) - 0.5) for line in lines)


def _path(line: Float[np.ndarray, "n 2"]) -> str:
    """Return a closed line without the points in the middle of straight parts."""
    step = np.diff(line, axis=0)
    turns = np.ones(len(line), bool)
    turns[1:-1] = np.abs(step[1:, 0] * step[:-1, 1] - step[1:, 1] * step[:-1, 0]) > 1e-6
    points = [f"{x:g} {y:g}" for x, y in line[turns][:-1].round(1)]
    return f"M{'L'.join(points)}Z" if points else ""


def foreground_dice(first: UInt8[np.ndarray, "h w"], second: UInt8[np.ndarray, "h w"]) -> float:
    """Return the Dice of the foreground of two answers; 1 if both are empty."""
    a, b = first > 0, second > 0
    total = int(a.sum()) + int(b.sum())
    return 2 * int((a & b).sum()) / total if total else 1.0


def region_colours(regions: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the number of the colour of each region."""
    return {name: number % 6 for number, name in enumerate(regions)}


def _fitted(size: tuple[int, ...], side: int) -> tuple[int, int]:
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _save_jpeg(path: Path, picture: Image.Image, side: int) -> None:
    height, width = _fitted((picture.height, picture.width), side)
    with atomic_file(path) as temporary:
        picture.resize((width, height), Image.Resampling.BILINEAR).save(temporary, quality=88)
