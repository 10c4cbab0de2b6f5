"""The report of a folder: `report.html`, one self-contained page that works offline and can be printed."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from ttdg.checkpoints import Model
from ttdg.data.unlabelled import InputFile, NewBatch, read_new_images
from ttdg.files import atomic_file
from ttdg.newsite.answers import label_pixels, read_labels
from ttdg.newsite.journal import JournalEntry
from ttdg.newsite.overlay import draw_overlay
from ttdg.safety import Drift

SHOWN = 12  # images with pictures, the first in the order of review
ROWS = 1000  # rows of the table, at most
SIDE = 224  # pixels of a picture


@dataclass(frozen=True)
class SiteReport:
    """What the page states."""

    description: Mapping[str, Any]  # of manifest.json
    drift: Drift | None
    verdict: str  # the drift in a sentence, or why it is not known
    method: str
    choice: str  # why `auto` chose the method
    entries: Sequence[JournalEntry]  # answers, in the order of review
    set_aside: Mapping[str, str]
    remarks: Mapping[str, int]
    seconds: float  # of this call
    answered: int  # files that this call answered
    audit: Mapping[str, int]  # what the log counts


def write_site_report(
    out: Path, report: SiteReport, model: Model, images: Sequence[InputFile], most_pixels: int
) -> Path:
    """Write `report.html`. Values are escaped, and nothing is loaded from elsewhere.

    Args:
        out: The output folder, with its masks.
        report: What the page states.
        model: The model, whose unadapted answer is drawn beside the final one. These images are read once more, only
            if the drift is known, as its measurement reads images again too.
        images: The image files. Those whose mask is not a PNG file that can be read are not drawn.
        most_pixels: Larger images are not drawn.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    first = {entry.file: entry for entry in report.entries[:SHOWN] if entry.mask.endswith(".png")}
    files = [image for image in images if image.file in first] if report.drift is not None else []
    pictures = _pictures(out, first, model, files, most_pixels) if files else {}
    environment = Environment(
        loader=PackageLoader("ttdg.newsite"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("site.html").render(
        report=report, rows=report.entries[:ROWS], pictures=pictures, chart=drift_chart(report.drift),
        rolled_back=sum(entry.gate not in ("", "accepted") for entry in report.entries),
    )  # fmt: skip
    path = out / "report.html"
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")
    return path


def _pictures(
    out: Path, entries: Mapping[str, JournalEntry], model: Model, files: Sequence[InputFile], most_pixels: int
) -> dict[str, tuple[str, str]]:
    """Return the pictures of the source's and of the final answer by file, as JPEG in base64."""
    device, drawn = next(model.network.parameters()).device, dict[str, tuple[str, str]]()

    def draw(batch: NewBatch) -> None:
        with torch.no_grad():
            logits = model.network(batch.images)
        for image, answer in zip(batch.files, logits, strict=True):
            assert image.picture is not None
            height, width = image.picture.shape[:2]
            scale = SIDE / max(height, width)
            size = max(1, round(width * scale)), max(1, round(height * scale))
            after = read_labels(out / entries[image.file].mask, model.card.benchmark.greys, size)
            if after is None:
                continue
            small = np.asarray(Image.fromarray(image.picture).resize(size, Image.Resampling.BILINEAR))
            before = label_pixels(answer, small.shape[:2])[0]
            drawn[image.file] = _jpeg(draw_overlay(small, before)), _jpeg(draw_overlay(small, after))

    for batch in read_new_images(
        [files],
        model.card.benchmark,
        4,
        device,
        pictures=True,
        most_pixels=most_pixels,
        on_error=lambda _: None,
    ):
        draw(batch)
    return drawn


def _jpeg(pixels: UInt8[np.ndarray, "h w 3"]) -> str:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=80)
    return base64.b64encode(data.getvalue()).decode()


def drift_chart(drift: Drift | None) -> list[dict[str, Any]]:
    """Return the bars of the drift chart with their lengths in percent."""
    if drift is None:
        return []
    longest = max(*drift.by_group.values(), drift.far_limit, 1e-9)
    return [
        {
            "name": name,
            "value": value,
            "width": 100 * value / longest,
            "limit": 100 * drift.home_limit / longest,
        }
        for name, value in drift.by_group.items()
    ]
