"""Segmenting a folder of images: writes masks in the size of each file, overlays, a journal and a manifest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ttdg.adaptation import METHODS, Resumable, SiteLearner, build_adapter
from ttdg.adaptation.adapter import Progress
from ttdg.checkpoints import Model
from ttdg.data.unlabelled import read_new_images
from ttdg.errors import UserError
from ttdg.newsite.inputs import PIXELS, find_files
from ttdg.newsite.journal import Journal, answer_key
from ttdg.newsite.manifest import write_manifest
from ttdg.newsite.names import output_names
from ttdg.newsite.rounds import sort_into_rounds
from ttdg.newsite.run import default_method, describe_masks, describe_run
from ttdg.newsite.run_state import RunState
from ttdg.newsite.session import Session


@dataclass(frozen=True)
class FolderResult:
    """Result of `predict`."""

    done: int  # files segmented in this call
    kept: int  # files whose masks from an earlier call are still valid
    set_aside: Mapping[str, str]  # file that is not segmented → reason
    manifest: Path
    expected_dice: Mapping[str, float]  # file → expected Dice of its mask, if the method predicts it
    method: str  # the method that was used
    stream: str  # the stream that was used
    remarks: Mapping[str, int]  # what the method says about its treatment of the site → number of files
    unusual: Mapping[str, str]  # files that are not this kind of image → why; they were answered alone
    edited: tuple[str, ...]  # files whose mask was changed after it was written, and is kept
    removed: tuple[str, ...]  # files with a mask that are no longer among the inputs


def predict(
    model: Model,
    images: Path | Sequence[Path],
    out: Path,
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    views: str = "plain",
    stream: str | None = None,
    batch: int = 4,
    overlays: bool = True,
    workers: int | None = None,
    again: bool = False,
    most_pixels: int = PIXELS,
    progress: Progress = lambda done, total: None,
    learning: Progress = lambda done, total: None,
) -> FolderResult:
    """Segment every image of a folder, at any depth, with a model that adapts to the images.

    In the stream `online` the model adapts to each batch when it answers it. In the stream `folder` it learns all
    images first and then answers all of them; each file is read twice. For a method without memory both are the same.

    Every other file is set aside with a reason. Images are processed in the order of their names. Constant frames and
    noise are answered by the source model, each alone, and nothing is learned from them. At most two batches are read
    ahead, so memory does not grow with the number of images, except for images that the method itself stores.

    A second call resumes an interrupted one: files with a valid answer in the journal are not answered again. If the
    method can save its state (`Resumable`), the adapter continues from the latest one: in the stream `folder` from that
    after learning, in the stream `online` from one of the last minute. Otherwise, if it has memory, the adapter
    processes all batches again. In each case the answers are those of an uninterrupted call.

    The answers of a finished call are final: a later call answers only new and changed files. A method with memory
    processes the earlier files again first. A mask that was changed by hand is kept.

    Args:
        model: The network with its card and parts.
        images: Files or folders.
        out: Folder to write. It may hold the answers of an earlier call with the same model, method and options.
        method: Name of the adaptation method. None is `judge` if the model has its parts, else `source`.
        options: Options of the method.
        views: `flips` averages the answers over the image and its mirror image, `scales` also over three sizes.
        stream: `online` or `folder`. None is `folder` for a method that learns a site (`SiteLearner`), else `online`.
        batch: Number of images that are adapted to together.
        overlays: Also draw each mask over its image.
        workers: Number of threads that read images; None is one per core.
        again: Answer all files again, and replace every answer in `out`.
        most_pixels: Images with more pixels are set aside.
        progress: Called with the number of processed files and the number of all image files.
        learning: Called, in the stream `folder`, with the number of finished steps and the number of all steps.
    """
    options, journal = options or {}, Journal(out, again)
    found = find_files([images] if isinstance(images, Path) else images, out)
    method = method or default_method(model)
    # A wrong request raises here, before anything is written.
    adapter = build_adapter(model, method, options, views)
    if stream not in (None, "online", "folder"):
        raise UserError(f"a folder is answered in the stream 'online' or 'folder', not {stream!r}")
    declared = METHODS[method]
    stream = stream or ("folder" if isinstance(adapter, SiteLearner) else "online")
    run = describe_run(model, method, options, views, batch, stream)
    if journal.entries:
        run.check_same(journal.run)
    rounds, files = sort_into_rounds(found.images, journal), [image.file for image in found.images]
    key = answer_key(json.dumps(asdict(run), sort_keys=True))
    saved = RunState(out, key, adapter) if declared.memory and isinstance(adapter, Resumable) else None
    groups = rounds.groups(declared.memory) if rounds.present else []
    session = Session(
        model, adapter, journal, asdict(run), output_names(files, journal.names()), rounds.final(),
        dict(found.set_aside) | {refused.file: refused.reason for refused in rounds.refused}, len(files), progress,
    )  # fmt: skip
    device = next(model.network.parameters()).device
    session.answer(
        partial(
            read_new_images, groups, model.card.benchmark, batch, device, most_pixels=most_pixels, workers=workers
        ), key, learns_first=declared.memory and stream == "folder" and bool(rounds.present),
        learns_on_the_way=declared.memory and stream == "online", saved=saved, overlays=overlays,
        batches=sum(-(-len(group) // batch) for group in groups), learning=learning,
    )  # fmt: skip
    if rounds.present:
        journal.finish()
    if saved is not None:
        saved.remove()
    removed = journal.removed(files)
    manifest = write_manifest(journal, found, session.set_aside, removed, describe_masks(run, model))
    expected, remarks = journal.expected_dice(files), journal.remarks(files)
    answers = {file: journal.entries[file] for file in files}
    return FolderResult(
        session.done, session.kept, session.set_aside, manifest, expected, method, stream, remarks,
        unusual={file: entry.unusual for file, entry in answers.items() if entry.unusual},
        edited=tuple(file for file in files if file in journal.edited), removed=removed,
    )  # fmt: skip
