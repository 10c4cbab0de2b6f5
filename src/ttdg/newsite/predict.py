"""A folder of images in; masks in each image's own size, overlays and a manifest out."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from ttdg.adaptation import METHODS, Adapter, adapt
from ttdg.adaptation.judge.method import Verdict
from ttdg.checkpoints import Model, part_digest
from ttdg.data import Benchmark, Case, Loaded, open_folder, read_image, stream
from ttdg.files import atomic_file
from ttdg.newsite.journal import Journal, JournalEntry
from ttdg.newsite.overlay import draw_overlay


@dataclass(frozen=True)
class FolderResult:
    """What a run over a folder came to."""

    done: int
    kept: int  # answers of an earlier run that were still valid
    set_aside: Mapping[str, str]  # file → reason
    manifest: Path
    expected_dice: Mapping[str, float]  # file → what a method that judges expects of its mask


def predict(
    model: Model,
    images: Path,
    out: Path,
    *,
    method: str = "source",
    options: Mapping[str, Any] | None = None,
    batch: int = 4,
    overlays: bool = True,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> FolderResult:
    """Segment every image of a folder, adapting along the way.

    A second call goes on where a killed one was: a batch whose answers stand is not answered again. A method
    with memory still has to *see* it, so that the stream it resumes is the stream it left.
    """
    device = next(model.network.parameters()).device
    adapter = adapt(model, method, **(options or {}))
    journal = Journal(out)
    cases = open_folder(images)
    parts = [part_digest(model.parts[name]) for name in METHODS[method].parts]
    chain = _hash(model.card.sha256, method, json.dumps(options or {}, sort_keys=True), str(batch), *parts)
    aside: dict[str, str] = {}
    done = kept = 0

    def set_aside(case: Case, error: Exception) -> None:
        aside[case.image.name] = str(error)
        journal.add(JournalEntry(case.image.name, "set aside", str(error)))

    for loaded in stream(cases, model.card.benchmark, batch, workers, set_aside, device):
        key = _hash(chain, *(hashlib.sha256(case.image.read_bytes()).hexdigest() for case in loaded.cases))
        standing = all(journal.has(case.image.name, key) for case in loaded.cases)
        if METHODS[method].memory:
            chain = key
        if not standing or METHODS[method].memory:
            logits = adapter(loaded.batch.images)
        if standing:
            kept += len(loaded.cases)
        else:
            written = _write(loaded, logits, model.card.benchmark, out, key, overlays)
            journal.add(
                *(
                    replace(entry, **fact)
                    for entry, fact in zip(written, expected(adapter, len(written)), strict=True)
                )
            )
            done += len(loaded.cases)
        progress(done + kept + len(aside))
    manifest = journal.write_manifest([case.image.name for case in cases])
    said = {case.image.name: journal.expected(case.image.name) for case in cases}
    return FolderResult(
        done, kept, aside, manifest, {name: dice for name, dice in said.items() if dice is not None}
    )


def expected(adapter: Adapter, count: int) -> list[dict[str, Any]]:
    """For each image of the last batch what a judging method chose, and how well it expects that to be."""
    verdict = getattr(adapter, "verdict", None)
    if not isinstance(verdict, Verdict):
        return [{}] * count
    found, rows = verdict.prediction, torch.arange(count, device=verdict.chosen.device)
    middle, half = (x[rows, verdict.chosen].clamp(0, 1).tolist() for x in (found.dice, found.half_width))
    return [
        {
            "reading": verdict.candidates[choice], "expected_dice": m,
            "expected_low": max(0.0, m - h), "expected_high": min(1.0, m + h),
        }
        for choice, m, h in zip(verdict.chosen.tolist(), middle, half, strict=True)
    ]  # fmt: skip


def _write(
    loaded: Loaded, logits: torch.Tensor, benchmark: Benchmark, out: Path, key: str, overlays: bool
) -> list[JournalEntry]:
    entries = []
    for case, logit, size in zip(loaded.cases, logits, loaded.sizes, strict=True):
        own = F.interpolate(logit[None].float(), size, mode="bilinear", align_corners=False)[0]
        largest, labels = own.softmax(0).max(0)
        array = labels.to(torch.uint8).cpu().numpy()
        mask, picture = Path("masks") / f"{case.name}.png", Path("overlays") / f"{case.name}.jpg"
        _save(out / mask, benchmark.decode(array))
        if overlays:
            _save(out / picture, draw_overlay(read_image(case.image), array))
        facts: dict[str, Any] = {"mask": str(mask), "overlay": str(picture) if overlays else ""}
        facts |= {"foreground": float((array > 0).mean()), "confidence": float(largest.mean())}
        entries.append(JournalEntry(case.image.name, "done", key=key, width=size[1], height=size[0], **facts))
    return entries


def _save(path: Path, array: np.ndarray) -> None:
    with atomic_file(path) as temporary:
        Image.fromarray(array).save(temporary)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
