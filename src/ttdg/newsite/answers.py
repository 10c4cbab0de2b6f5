"""Writing the answer to one image: its mask in the size of the file, its overlay, and its journal entry."""

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image

from ttdg.adaptation import Assessment
from ttdg.adaptation.gate import GateDecision
from ttdg.data import Benchmark
from ttdg.data.raster import DAMAGE
from ttdg.data.unlabelled import InputFile, NewBatch, NewImage
from ttdg.files import atomic_file
from ttdg.newsite.journal import PARTS, Journal, JournalEntry
from ttdg.newsite.overlay import add_legend, draw_overlay

STRIP = 1_000_000  # pixels of the mask that are computed at once
FORMATS = {".png": "PNG", ".jpg": "JPEG"}
ROWS = 64  # rows of the mask that are converted at once


def write_answer(
    out: Path,
    image: NewImage,
    name: str,
    logits: Float[torch.Tensor, "l s s"],
    greys: UInt8[np.ndarray, "l"],
    labels: Sequence[str],
    probabilities: bool = False,
) -> JournalEntry:
    """Write `masks/NAME.png` and, if the image has a picture, `overlays/NAME.jpg` under `out`.

    The answer to a frame of a stack, whose mask is not complete, is written as `parts/NAME/NUMBER.png` with the indices
    of its labels. An overlay and maps of an earlier answer that are not written anew are deleted.

    Args:
        out: The output folder.
        image: The image that was segmented.
        name: Name of the mask and the overlay without their suffix.
        logits: Its segmentation.
        greys: The grey value of each label in the mask.
        labels: The name of each label, for the legend of the overlay.
        probabilities: Also write `probabilities/NAME-1.png` with the probability of the first label after the
            background, and so on; 255 is 1.

    Returns:
        The journal entry of the file, without its key and its expected Dice.
    """
    maps = np.empty((len(labels) - 1, *image.size), np.uint8) if probabilities else None
    indices, confidence = label_pixels(logits, image.size, maps)
    stack, number = image.input.stack, f"{image.input.number + 1:04}"
    mask = f"masks/{name}.png" if stack is None else f"{PARTS}/{name}/{number}.png"
    shown_as = shown_name(image.input, name)
    overlay = f"overlays/{shown_as}.jpg"
    for label in range(1, len(labels)):
        path = out / f"probabilities/{shown_as}-{label}.png"
        if maps is not None:
            _save(path, maps[label - 1])
        else:
            path.unlink(missing_ok=True)
    foreground = np.count_nonzero(indices) / indices.size
    if image.picture is not None:
        _save_overlay(out / overlay, image.picture, indices, labels)
    else:
        (out / overlay).unlink(missing_ok=True)
    for start in range(
        0, len(indices) if stack is None else 0, ROWS
    ):  # in place and in strips, because an index takes eight bytes
        indices[start : start + ROWS] = greys[indices[start : start + ROWS]]
    digest = _save(out / mask, indices)
    return JournalEntry(
        file=image.file,
        status="done",
        input_sha256=image.sha256,
        mask=mask,
        mask_sha256=digest,
        overlay=overlay if image.picture is not None else "",
        height=image.size[0],
        width=image.size[1],
        foreground=foreground,
        confidence=confidence,
        unusual=image.unusual,
        holder=image.input.holder,
        stack=stack.name if stack is not None else "",
    )


def shown_name(image: InputFile, name: str) -> str:
    """Return the name of the overlay and the probability maps of an image, given the name of its mask."""
    return name if image.stack is None or image.stack.depth == 1 else f"{name}/{image.number + 1:04}"


def draw_missing_overlays(
    journal: Journal,
    images: Iterable[InputFile],
    benchmark: Benchmark,
    read: Callable[[Sequence[Sequence[InputFile]]], Iterable[NewBatch]],
) -> None:
    """Draw the overlays of images that were answered without one; frames and slices stay without."""
    entries = {image: journal.entries.get(image.file) for image in images if image.stack is None}
    bare = [image for image, entry in entries.items() if entry and entry.mask and not entry.overlay]
    for batch in read([bare]):
        for image in batch.files:
            _draw_overlay(journal, image, benchmark)


def _draw_overlay(journal: Journal, image: NewImage, benchmark: Benchmark) -> None:
    """Draw the overlay of an image from its mask as it is now; nothing if that cannot be read."""
    entry = journal.entries[image.file]
    indices = read_labels(journal.folder / entry.mask, benchmark.greys)
    if indices is None:
        return
    overlay = f"overlays/{entry.mask.removeprefix('masks/').removesuffix('.png')}.jpg"
    assert image.picture is not None
    _save_overlay(journal.folder / overlay, image.picture, indices, benchmark.labels)
    journal.add(replace(entry, overlay=overlay))


def read_labels(
    mask: Path, greys: UInt8[np.ndarray, "l"], size: tuple[int, int] | None = None
) -> UInt8[np.ndarray, "h w"] | None:
    """Return the labels of a mask file, at another (width, height) if one is given; None if it cannot be read.

    Values of a mask changed by hand that stand for no label count as background.
    """
    labels = np.zeros(256, np.uint8)
    labels[greys] = np.arange(len(greys))
    with suppress(*DAMAGE), Image.open(mask) as opened:
        values = opened.convert("L")
        return labels[np.asarray(values.resize(size, Image.Resampling.NEAREST) if size else values)]
    return None


def label_pixels(
    logits: Float[torch.Tensor, "l s s"],
    size: tuple[int, int],
    maps: UInt8[np.ndarray, "k height width"] | None = None,
) -> tuple[UInt8[np.ndarray, "h w"], float]:
    """Return the label of each pixel at `size`, and the mean of the largest probability.

    If `maps` is given, it is filled with the probabilities of the labels but the first; 255 is 1.

    The logits are interpolated bilinearly, first along the rows and then in strips of rows, so that memory does not
    grow with the number of labels times the number of pixels.
    """
    height, width = size
    rows = logits.shape[1]
    wide = F.interpolate(logits[None].float(), (rows, width), mode="bilinear", align_corners=False)[0]
    position = ((torch.arange(height, device=wide.device) + 0.5) * (rows / height) - 0.5).clamp(0, rows - 1)
    above = position.long()
    below, weight = (above + 1).clamp(max=rows - 1), (position - above)[:, None]
    labels, total = np.empty(size, np.uint8), 0.0
    step = max(1, STRIP // width)
    for start in range(0, height, step):
        part = slice(start, start + step)
        strip = torch.lerp(wide[:, above[part]], wide[:, below[part]], weight[part])
        best, indices = strip.max(0)
        if maps is not None:
            maps[:, part] = strip.softmax(0)[1:].mul(255).round().to(torch.uint8).cpu().numpy()
        labels[part] = indices.to(torch.uint8).cpu().numpy()
        total += float((best - strip.logsumexp(0)).exp().sum(dtype=torch.float64))
    return labels, total / (height * width)


def expected_fields(assessment: Assessment | None, count: int) -> list[dict[str, Any]]:
    """Return the journal fields about the expected Dice of each image of a batch of `count` images."""
    if assessment is None:
        return [{}] * count
    dice, half_width = (values.clamp(0, 1).tolist() for values in (assessment.dice, assessment.half_width))
    known = assessment.unadapted
    unadapted = [None] * count if known is None else known.clamp(0, 1).tolist()
    return [
        {
            "reading": choice,
            "expected_dice": middle,
            "expected_low": max(0.0, middle - half),
            "expected_high": min(1.0, middle + half),
            "expected_unadapted": other,
        }
        for choice, middle, half, other in zip(assessment.choices, dice, half_width, unadapted, strict=True)
    ]


def gate_fields(decision: GateDecision | None, count: int) -> list[str]:
    """Return what the gate decided about each image of a batch of `count` images."""
    if decision is None:
        return [""] * count
    return [reason or "accepted" for reason in decision.reasons]


def _save_overlay(
    path: Path, picture: UInt8[np.ndarray, "h w 3"], indices: UInt8[np.ndarray, "y x"], labels: Sequence[str]
) -> None:
    """Draw the labels over a picture, which may be smaller than they are."""
    height, width, _ = picture.shape
    if indices.shape != (height, width):
        indices = np.asarray(Image.fromarray(indices).resize((width, height), Image.Resampling.NEAREST))
    _save(path, add_legend(draw_overlay(picture, indices), labels))


def _save(path: Path, pixels: np.ndarray) -> str:
    """Write an image without metadata and return the hash of the file.

    It is encoded in memory first: encoders that write into a file do not say that the disk is full.
    """
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, FORMATS[path.suffix])
    with atomic_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())
    return hashlib.sha256(buffer.getbuffer()).hexdigest()
