"""Segmenting a folder of images: writes masks in the size of each file, overlays, a journal and a manifest."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttdg.adaptation import METHODS, Assessment, SelfAssessing, adapt
from ttdg.checkpoints import Model
from ttdg.data import Case, open_folder
from ttdg.data.new_images import read_new_images
from ttdg.errors import UserError
from ttdg.newsite.answers import write_answer
from ttdg.newsite.journal import Journal, JournalEntry


@dataclass(frozen=True)
class FolderResult:
    """Result of `predict`."""

    done: int  # files segmented in this call
    kept: int  # files whose masks from an earlier call are still valid
    set_aside: Mapping[str, str]  # unreadable file → reason
    manifest: Path
    expected_dice: Mapping[str, float]  # file → expected Dice of its mask, if the method predicts it


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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FolderResult:
    """Segment every image of a folder, adapting the model batch by batch.

    Unreadable files are set aside. Images are processed in the order of their names. At most two batches are
    read ahead, so memory does not grow with the number of images.

    A second call resumes an interrupted one: files with a valid answer in the journal are not answered again. If
    the method has memory, the adapter still processes their batches, so that later answers are the same.

    Args:
        model: The network with its card and parts.
        images: Folder of images; files of other types are ignored.
        out: Folder to write.
        method: Name of the adaptation method.
        options: Options of the method.
        batch: Number of images that are adapted to together.
        overlays: Also draw each mask over its image.
        workers: Number of threads that read images; None is one per core.
        progress: Called with the number of processed files and the number of all files.
    """
    options = options or {}
    adapter = adapt(model, method, **options)  # raises for a wrong request, before anything is written
    has_memory, benchmark = METHODS[method].memory, model.card.benchmark
    key = _run_key(model, method, options, batch)
    journal, set_aside, done, kept = Journal(out), dict[str, str](), 0, 0

    def on_error(case: Case, error: UserError) -> None:
        set_aside[case.image.name] = str(error)
        journal.add(JournalEntry(case.image.name, "set aside", str(error)))

    cases, greys = open_folder(images), benchmark.greys
    device = next(model.network.parameters()).device
    progress(0, len(cases))
    for read in read_new_images(
        cases, benchmark, batch, device, pictures=overlays, workers=workers, on_error=on_error
    ):
        batch_key = _hash(key, *(image.sha256 for image in read.files))
        if has_memory:
            key = batch_key  # the answers to later batches depend on this batch
        answered = all(journal.kept.get(image.file) == batch_key for image in read.files)
        if has_memory or not answered:
            logits = adapter(read.images)
            assessment = adapter.assessment() if isinstance(adapter, SelfAssessing) else None
        if answered:
            kept += len(read.files)
        else:
            journal.add(
                *(
                    replace(write_answer(out, image, answer, greys), key=batch_key, **expected)
                    for image, answer, expected in zip(
                        read.files, logits, _expected_fields(assessment, len(read.files)), strict=True
                    )
                )
            )
            done += len(read.files)
        progress(done + kept + len(set_aside), len(cases))
    files = [case.image.name for case in cases]
    return FolderResult(done, kept, set_aside, journal.write_manifest(files), journal.expected_dice(files))


def _run_key(model: Model, method: str, options: Mapping[str, Any], batch: int) -> str:
    """Return a hash of everything but the images that answers depend on."""
    parts = [model.parts[name].digest for name in METHODS[method].parts]
    settings = json.dumps(options, sort_keys=True)
    return _hash(model.card.sha256, method, settings, str(batch), *parts)


def _expected_fields(assessment: Assessment | None, count: int) -> list[dict[str, Any]]:
    """Return the journal fields about the expected Dice of each image of a batch of `count` images."""
    if assessment is None:
        return [{}] * count
    dice, half_width = (values.clamp(0, 1).tolist() for values in (assessment.dice, assessment.half_width))
    return [
        {
            "reading": choice,
            "expected_dice": middle,
            "expected_low": max(0.0, middle - half),
            "expected_high": min(1.0, middle + half),
        }
        for choice, middle, half in zip(assessment.choices, dice, half_width, strict=True)
    ]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
