"""Decisions about answers, corrections by brush strokes, and the export of a site."""

import csv
import hashlib
import io
import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from PIL import Image, ImageDraw
from pydantic import BaseModel, Field

from ttdg.data import Benchmark
from ttdg.errors import UserError
from ttdg.files import atomic_file
from ttdg.newsite.journal import PARTS
from ttdg.newsite.stages.output_folder import FILES
from ttdg.page.contours import outline_mask
from ttdg.page.queue_rows import VERDICTS, QueueRow, by_risk, queue_rows

LOCK = threading.Lock()  # of review.jsonl and of masks that are corrected
Share = Annotated[float, Field(ge=-0.5, le=1.5, allow_inf_nan=False)]


class Stroke(BaseModel):
    """A stroke of the brush, in shares of the width and the height of the image."""

    label: int = Field(ge=0, le=255)
    radius: float = Field(gt=0, le=0.5, allow_inf_nan=False)  # share of the longer side
    points: list[tuple[Share, Share]] = Field(min_length=1, max_length=20_000)


def decide(folder: Path, row: QueueRow, verdict: str, strokes: int = 0) -> None:
    """Append a decision to `review.jsonl`."""
    if verdict not in VERDICTS:
        raise UserError(f"a decision is one of {', '.join(VERDICTS)}")
    line = {"file": row.entry.file, "verdict": verdict, "strokes": strokes, "time": round(time.time(), 3)}
    with LOCK, (folder / "review.jsonl").open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        cut = file.read(1) not in (b"", b"\n")  # a line that a killed server left
        file.write(b"\n" * cut + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def correct(folder: Path, row: QueueRow, strokes: Sequence[Stroke], benchmark: Benchmark) -> None:
    """Draw strokes into the mask, in its full size. `predict` keeps a mask that was changed."""
    mask, original = folder / "out" / row.entry.mask, folder / "shown" / f"{row.key}.mask.png"
    if row.why_fixed:
        raise UserError(row.why_fixed)
    if not mask.is_file():
        raise UserError(f"the mask {row.entry.mask} is missing; segment the site again to write it")
    if any(stroke.label >= len(benchmark.labels) for stroke in strokes):
        raise UserError("the model has no such label; reload the page")
    with LOCK:
        if not original.exists():
            _copy(mask, original)
        with Image.open(mask) as opened:
            drawn = opened.copy()
        for stroke in strokes:
            _draw(drawn, stroke, int(benchmark.greys[stroke.label]))
        with atomic_file(mask) as temporary:
            drawn.save(temporary)
        outline_mask(folder / "shown", row.key, mask, benchmark)
    decide(folder, row, "corrected", len(strokes))


def restore(folder: Path, row: QueueRow, benchmark: Benchmark) -> None:
    """Undo all corrections of an image."""
    mask, original = folder / "out" / row.entry.mask, folder / "shown" / f"{row.key}.mask.png"
    with LOCK:
        if original.exists():
            _copy(original, mask)
            original.unlink()  # so that a correction of a later answer keeps that answer
            outline_mask(folder / "shown", row.key, mask, benchmark)
    decide(folder, row, "undecided")


def write_export(folder: Path, path: Path) -> Path:
    """Write a ZIP file of all masks, the decisions, and what else `predict` has written. Frames may share a mask."""
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("file", "mask", "verdict", "mask_sha256"))
        digests = dict[str, str]()
        for row in by_risk(queue_rows(folder)):
            name = row.entry.mask
            mask = folder / "out" / name
            if row.done and name not in digests and not name.startswith(f"{PARTS}/") and mask.is_file():
                data = mask.read_bytes()
                archive.writestr(name.encode(errors="replace").decode(), data)
                digests[name] = hashlib.sha256(data).hexdigest()
            verdict = row.verdict if row.done else row.entry.status
            writer.writerow((row.entry.file, name, verdict, digests.get(name, "")))
        archive.writestr("decisions.csv", table.getvalue().encode(errors="surrogateescape"))
        for name in FILES:
            if (folder / "out" / name).is_file():
                archive.write(folder / "out" / name, name)
    return path


def _draw(mask: Image.Image, stroke: Stroke, grey: int) -> None:
    """Draw a stroke with round ends."""
    draw, radius = ImageDraw.Draw(mask), stroke.radius * max(mask.size)
    points = [(x * mask.width, y * mask.height) for x, y in stroke.points]
    if len(points) > 1:
        draw.line(points, fill=grey, width=max(1, round(2 * radius)), joint="curve")
    for x, y in points:
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=grey)


def _copy(source: Path, target: Path) -> None:
    with atomic_file(target) as temporary:
        shutil.copyfile(source, temporary)
