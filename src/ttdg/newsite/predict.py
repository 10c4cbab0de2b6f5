"""Segmenting a folder of images: writes masks in the size of each file, overlays, a journal and a manifest."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ttdg.adaptation import (
    METHODS,
    Assessment,
    FrozenPredictor,
    Remarking,
    Resumable,
    SelfAssessing,
    SiteLearner,
    build_adapter,
)
from ttdg.adaptation.adapter import Images, Logits, Progress
from ttdg.checkpoints import Model
from ttdg.data import Case, open_folder
from ttdg.data.new_images import NewBatch, read_new_images
from ttdg.errors import UserError
from ttdg.evaluation.streams import frozen_predictor
from ttdg.newsite.answers import write_answer
from ttdg.newsite.journal import Journal, JournalEntry, answer_key
from ttdg.newsite.learning import learn_folder
from ttdg.newsite.run_state import RunState


@dataclass(frozen=True)
class FolderResult:
    """Result of `predict`."""

    done: int  # files segmented in this call
    kept: int  # files whose masks from an earlier call are still valid
    set_aside: Mapping[str, str]  # unreadable file → reason
    manifest: Path
    expected_dice: Mapping[str, float]  # file → expected Dice of its mask, if the method predicts it
    stream: str  # the stream that was used
    remarks: Mapping[str, int]  # what the method says about its treatment of the site → number of files


def predict(
    model: Model,
    images: Path,
    out: Path,
    *,
    method: str = "source",
    options: Mapping[str, Any] | None = None,
    views: str = "plain",
    stream: str | None = None,
    batch: int = 4,
    overlays: bool = True,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
    learning: Progress = lambda done, total: None,
) -> FolderResult:
    """Segment every image of a folder with a model that adapts to the images.

    In the stream `online` the model adapts to each batch when it answers it. In the stream `folder` it learns all
    images first and then answers all of them; each file is read twice. For a method without memory both are the same.

    Unreadable files are set aside. Images are processed in the order of their names. At most two batches are read
    ahead, so memory does not grow with the number of images, except for images that the method itself stores.

    A second call resumes an interrupted one: files with a valid answer in the journal are not answered again. If the
    method can save its state (`Resumable`), the adapter continues from the latest one: in the stream `folder` from that
    after learning, in the stream `online` from one of the last minute. Otherwise, if it has memory, the adapter
    processes all batches again. In each case the answers are those of an uninterrupted call.

    Args:
        model: The network with its card and parts.
        images: Folder of images; files of other types are ignored.
        out: Folder to write.
        method: Name of the adaptation method.
        options: Options of the method.
        views: `flips` averages the answers over the image and its mirror image, `scales` also over three sizes.
        stream: `online` or `folder`. None is `folder` for a method that learns a site (`SiteLearner`), else `online`.
        batch: Number of images that are adapted to together.
        overlays: Also draw each mask over its image.
        workers: Number of threads that read images; None is one per core.
        progress: Called with the number of processed files and the number of all files.
        learning: Called, in the stream `folder`, with the number of finished steps and the number of all steps.
    """
    options, journal = options or {}, Journal(out)
    other_views = () if views == "plain" else (views,)
    request = answer_key(method, json.dumps(options, sort_keys=True, default=str), str(batch), *other_views)
    adapter = build_adapter(
        model, method, options, views
    )  # raises for a wrong request, before anything is written
    if stream not in (None, "online", "folder"):
        raise UserError(f"a folder is answered in the stream 'online' or 'folder', not {stream!r}")
    stream = stream or ("folder" if isinstance(adapter, SiteLearner) else "online")
    cases, declared, benchmark = open_folder(images), METHODS[method], model.card.benchmark
    key = answer_key(model.card.sha256, request, *(model.parts[name].digest for name in declared.parts))
    saved = RunState(out, key, adapter) if declared.memory and isinstance(adapter, Resumable) else None
    learns_first = declared.memory and stream == "folder"
    learns_on_the_way = declared.memory and stream == "online"
    answer: Callable[[Images], Logits] = adapter
    assessing = adapter if isinstance(adapter, SelfAssessing) else None
    set_aside, done, kept, covered, greys = dict[str, str](), 0, 0, 0, benchmark.greys

    def on_error(case: Case, error: UserError) -> None:
        set_aside[case.image.name] = str(error)
        journal.add(JournalEntry(case.image.name, "set aside", str(error)))

    device = next(model.network.parameters()).device
    read = partial(read_new_images, cases, benchmark, batch, device, workers=workers)
    read_before = partial(read, pictures=False, on_error=lambda case, error: None)
    progress(0, len(cases))
    if learns_first:
        key = learn_folder(
            adapter, read_before, key, batches=-(-len(cases) // batch), journal=journal, saved=saved, progress=learning
        )  # fmt: skip
        answer = frozen_predictor(adapter)
        if not isinstance(adapter, FrozenPredictor):
            assessing = None  # its assessment is that of the last batch that it learned
    elif saved is not None:
        covered = saved.resume_online(read_before(), key, journal)
    for number, loaded in enumerate(read(pictures=overlays, on_error=on_error), 1):
        batch_key = key if learns_first else answer_key(key, *(image.sha256 for image in loaded.files))
        if learns_on_the_way:
            key = batch_key  # the answers to later batches depend on this batch
        answered = {(image.file, batch_key) for image in loaded.files} <= journal.kept.items()
        processed = not answered or (learns_on_the_way and number > covered)
        if processed:
            logits = answer(loaded.images)
            assessment = assessing.assessment() if assessing is not None else None
        if answered:
            kept += len(loaded.files)
        else:
            entries = _write_answers(out, loaded, logits, assessment, greys)
            remark = " ".join(adapter.remarks()) if isinstance(adapter, Remarking) else ""
            journal.add(*(replace(entry, key=batch_key, remark=remark) for entry in entries))
            done += len(loaded.files)
        if saved is not None and learns_on_the_way and processed:
            saved.save_if_due(key, number)
        progress(done + kept + len(set_aside), len(cases))
    files = [case.image.name for case in cases]
    manifest = journal.write_manifest(files)
    if saved is not None:
        saved.remove()
    expected, remarks = journal.expected_dice(files), journal.remarks(files)
    return FolderResult(done, kept, set_aside, manifest, expected, stream, remarks)


def _write_answers(
    out: Path, loaded: NewBatch, logits: Logits, assessment: Assessment | None, greys: UInt8[np.ndarray, "l"]
) -> list[JournalEntry]:
    """Write the answers to a batch; return their journal entries without the key."""
    expected = _expected_fields(assessment, len(loaded.files))
    return [
        replace(write_answer(out, image, answer, greys), **fields)
        for image, answer, fields in zip(loaded.files, logits, expected, strict=True)
    ]


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
