"""Segmenting a folder of images: writes masks in the size of each file, overlays, a journal and a manifest."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttdg.adaptation import METHODS, Adapter, SelfAssessing, adapt, checked
from ttdg.checkpoints import Model, part_digest, required_parts
from ttdg.data import Case, open_folder
from ttdg.data.loading import read_batches
from ttdg.errors import UserError, suggestion
from ttdg.newsite.answers import write_answer
from ttdg.newsite.images import network_batch, read_new_image
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
    key = _run_key(model, method, options, batch)  # also checks the request, before anything is written
    has_memory, benchmark = METHODS[method].memory, model.card.benchmark
    device = next(model.network.parameters()).device
    cases = open_folder(images)
    journal = Journal(out)
    set_aside: dict[str, str] = {}
    done = kept = 0
    adapter: Adapter | None = None

    def on_error(case: Case, error: UserError) -> None:
        set_aside[case.image.name] = str(error)
        journal.add(JournalEntry(case.image.name, "set aside", str(error)))

    progress(0, len(cases))
    for items in read_batches(
        cases, lambda case: read_new_image(case, benchmark, overlays), batch, workers, on_error
    ):
        inputs = [image for _, image in items]
        batch_key = _hash(key, *(image.sha256 for image in inputs))
        if has_memory:
            key = batch_key  # the answers to later batches depend on this batch
        answered = all(journal.has(image.file, batch_key) for image in inputs)
        if has_memory or not answered:
            adapter = adapter or adapt(model, method, **options)
            logits = adapter(network_batch(inputs, benchmark, device))
        if answered:
            kept += len(inputs)
        else:
            assert adapter is not None
            expected = _expected_dice(adapter, len(inputs))
            journal.add(
                *(
                    replace(write_answer(out, image, answer, benchmark), key=batch_key, **fields)
                    for image, answer, fields in zip(inputs, logits, expected, strict=True)
                )
            )
            done += len(inputs)
        progress(done + kept + len(set_aside), len(cases))

    files = [case.image.name for case in cases]
    return FolderResult(done, kept, set_aside, journal.write_manifest(files), journal.expected_dice(files))


def _run_key(model: Model, method: str, options: Mapping[str, Any], batch: int) -> str:
    """Check the method and its options; return a hash of everything but the images that answers depend on."""
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}{suggestion(method, METHODS)}")
    for name, value in options.items():
        checked(method, name, value)
    parts = required_parts(method, METHODS[method].parts, model.parts)
    settings = json.dumps(options, sort_keys=True)
    return _hash(model.card.sha256, method, settings, str(batch), *(part_digest(part) for part in parts))


def _expected_dice(adapter: Adapter, count: int) -> list[dict[str, Any]]:
    """Return the journal fields about the expected Dice of each image of the last batch of `count` images."""
    assessment = adapter.assessment() if isinstance(adapter, SelfAssessing) else None
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
