"""Segmenting a folder of images: writes masks in the size of each file, overlays, a journal and a manifest."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ttdg
from ttdg.adaptation import METHODS, Adapter, Resumable, SiteLearner, build_adapter
from ttdg.adaptation.adapter import Progress
from ttdg.adaptation.gate import gate as put_gate
from ttdg.checkpoints import Model
from ttdg.data.unlabelled import read_new_images
from ttdg.errors import UserError
from ttdg.newsite.answers import draw_missing_overlays
from ttdg.newsite.audit import AuditLog, verify_audit
from ttdg.newsite.auto import AUTO, MethodChoice, choose_method
from ttdg.newsite.inputs import PIXELS, find_files
from ttdg.newsite.journal import SHARDS, Journal, answer_key
from ttdg.newsite.manifest import by_input, input_count, write_manifest
from ttdg.newsite.names import output_names
from ttdg.newsite.report_page import SiteReport, write_site_report
from ttdg.newsite.rounds import sort_into_rounds
from ttdg.newsite.run import default_policy, describe_masks, describe_run, unknown_drift
from ttdg.newsite.run_state import RunState
from ttdg.newsite.segmentation_object import Maker
from ttdg.newsite.session import Answered, Session
from ttdg.newsite.site_check import SourceKind, check_site
from ttdg.newsite.stack_masks import StackMasks
from ttdg.safety import Drift
from ttdg.safety.policy import GatePolicy

if TYPE_CHECKING:
    from ttdg.newsite.shards import Sharding


@dataclass(frozen=True)
class FolderResult:
    """Result of `predict`."""

    done: int  # files segmented in this call
    kept: int  # files whose masks from an earlier call are still valid
    set_aside: Mapping[str, str]  # file that is not segmented → reason
    manifest: Path
    expected_dice: Mapping[str, float]  # file → expected Dice of its mask, if the method predicts it
    method: str  # the method that was used
    choice: str  # why `auto` chose it; empty if it was named
    stream: str  # the stream that was used
    remarks: Mapping[str, int]  # what the method says about its treatment of the site → number of files
    unusual: Mapping[str, str]  # files that are not this kind of image → why; they were answered alone
    edited: tuple[str, ...]  # files whose mask was changed after it was written, and is kept
    removed: tuple[str, ...]  # files with a mask that are no longer among the inputs
    report: Path  # `report.html`
    drift: Drift | None  # distance from the source sites; None without a fingerprint or without images


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
    gate: GatePolicy | bool | None = None,
    most_pixels: int = PIXELS,
    probabilities: bool = False,
    keep_identity: bool = False,
    progress: Progress = lambda done, total: None,
    learning: Progress = lambda done, total: None,
    answered: Answered = lambda batch, logits: None,
    chosen: Callable[[MethodChoice, Drift | None], None] = lambda choice, drift: None,
    prepared: Callable[[Adapter], None] = lambda adapter: None,
    shards: "Sharding | None" = None,
) -> FolderResult:
    """Segment every image of a folder, at any depth, with a model that adapts to the images.

    In the stream `online` the model adapts to each batch when it answers it. In the stream `folder` it learns all
    images first and then answers all of them; each file is read twice. For a method without memory both are the same.

    A frame of a DICOM or NIfTI file is an image. Its mask is a frame of a DICOM segmentation, or a slice of a NIfTI
    file with the affine of the input. DICOM slices of one series share a segmentation. A batch has slices of one volume
    only.

    Every other file is set aside with a reason. Images are processed in the order of their names. Constant frames,
    noise and, by the fingerprint of the model, images of another kind are answered by the source model, each alone, and
    nothing is learned from them. At most two batches are read ahead, so memory does not grow with the number of images,
    except for images that the method itself stores.

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
        method: Name of the adaptation method. `auto`, or None, chooses source, judge or universe (`choose_method`).
        options: Options of the method.
        views: `flips` averages the answers over the image and its mirror image, `scales` also over three sizes.
        stream: `online` or `folder`. None is `folder` for a method that learns a site (`SiteLearner`), else `online`.
        batch: Number of images that are adapted to together.
        overlays: Also draw each mask over its image.
        workers: Number of threads that read images; None is one per core.
        again: Answer all files again, and replace every answer in `out`.
        gate: The policy of the gate. True is its defaults, and False no gate. None is the default policy for methods
            that need one, if the model has a judge (`default_policy`).
        most_pixels: Images with more pixels are set aside.
        probabilities: Also write the probability of each label but the background, as PNG files whose value 255 is 1.
        keep_identity: Copy the name, number, birth date and sex of the patient, and the dates and numbers of the study,
            from DICOM images into their segmentations. By default these tags are empty.
        progress: Called with the number of processed images and the number of all images; a frame is an image.
        learning: Called, in the stream `folder`, with the number of finished steps and the number of all steps.
        answered: Called with each batch and its logits, before the masks of the batch are written.
        chosen: Called once, before anything is written, with the method and the drift, if `auto` measured it.
        prepared: Called once with the adapter, without its gate, before it sees an image. It must not be changed.
        shards: Answer slices of the files in several processes or machines, with the same result. The method has no
            memory between batches, or learns the folder first. `answered` is not called.
    """
    if model.card.benchmark.task == "classification":
        raise UserError(
            "this model gives each image a class, and only masks can be written here; evaluate it on labelled sites, "
            "or call its adapter from Python"
        )
    start = time.perf_counter()
    options, journal = options or {}, Journal(out, again)
    if again:
        shutil.rmtree(out / SHARDS, ignore_errors=True)
    elif shards is None and (out / SHARDS).exists():
        raise UserError(
            "the output folder holds an unfinished prediction in shards; continue it with shards, or ask for all "
            "answers again"
        )
    inputs = [images] if isinstance(images, Path) else images
    found = find_files(inputs if shards is None else [path.absolute() for path in inputs], out)
    choice, drift = MethodChoice(method or AUTO, ""), None
    check = partial(check_site, model, found.images, most_pixels=most_pixels, workers=workers)
    if choice.method == AUTO:
        if options:
            raise UserError("the method 'auto' has no options; name the method whose options these are")
        choice = choose_method(model, drift := check(), len(found.images), journal)
    method = choice.method
    # A wrong request raises here, before anything is written.
    adapter = build_adapter(model, method, options, views)
    prepared(adapter)
    if stream not in (None, "online", "folder"):
        raise UserError(f"a folder is answered in the stream 'online' or 'folder', not {stream!r}")
    declared = METHODS[method]
    stream = stream or ("folder" if isinstance(adapter, SiteLearner) else "online")
    if shards is not None:
        from ttdg.newsite.shards import ShardSettings, answer_in_shards, check_sharding

        check_sharding(method, stream, adapter)
    policy = default_policy(model, method) if gate is None else GatePolicy() if gate is True else gate or None
    if policy is not None:
        adapter = put_gate(adapter, model, model.card.benchmark.regions, policy, declared.memory)
    run = describe_run(model, method, options, views, batch, stream, policy)
    if journal.entries:
        run.check_same(journal.run)
    chosen(choice, drift)
    rounds, files = sort_into_rounds(found.images, journal), [image.file for image in found.images]
    units = list(dict.fromkeys(image.stack.name if image.stack else image.file for image in found.images))
    benchmark = model.card.benchmark
    maker = Maker(method, model.card.sha256, ttdg.__version__, keep_identity)
    key = answer_key(json.dumps(asdict(run), sort_keys=True))
    saved = RunState(out, key, adapter) if declared.memory and isinstance(adapter, Resumable) else None
    groups = rounds.groups(declared.memory) if rounds.present else []
    audit = AuditLog(out)
    session = Session(
        model, adapter, journal, asdict(run), {image.file: image for image in found.images},
        output_names(units, journal.names()), StackMasks(out, benchmark, maker), rounds.final(),
        dict(found.set_aside) | {refused.file: refused.reason for refused in rounds.refused}, progress, audit,
        answered, probabilities,
    )  # fmt: skip
    device = next(model.network.parameters()).device
    read = partial(
        read_new_images, groups, benchmark, batch, device, most_pixels=most_pixels, workers=workers,
        foreign=SourceKind(model),
    )  # fmt: skip
    session.begin(declared.memory)
    learned = None
    if shards is not None:
        journal.kept.clear()  # each shard looks for its own earlier answers
    if declared.memory and stream == "folder" and rounds.present:
        batches = sum(-(-len(group) // batch) for group in groups)
        learned = session.learn(read, key, saved=saved, batches=batches, learning=learning)
    online = declared.memory and stream == "online"
    if shards is None:
        session.answer(read, key, learned=learned, learns_on_the_way=online, saved=saved, overlays=overlays)
    else:
        shard_settings = ShardSettings(
            out.resolve(), shards, shards.threads_of_shard(), run, options, policy, maker, key, learned,
            journal.finished, overlays, workers, most_pixels, probabilities,
        )  # fmt: skip
        answer_in_shards(session, rounds.groups(False), shard_settings)
    if overlays:  # of answers that were made without them
        bare = partial(
            read_new_images, benchmark=benchmark, batch_size=batch, device=device, pictures=True,
            most_pixels=most_pixels, workers=workers, on_error=lambda refused: None,
        )  # fmt: skip
        draw_missing_overlays(journal, found.images, benchmark, bare)
    if rounds.present:
        journal.finish()
    if saved is not None:
        saved.remove()
    if shards is not None:
        shutil.rmtree(out / SHARDS)
    removed = journal.removed(files)
    drift = check() if drift is None else drift
    done, kept = (input_count(files, session.inputs) for files in (session.done, session.kept))
    set_aside = by_input(session.set_aside, session.inputs)
    audit.add("finished", segmented=done, kept=kept, set_aside=len(set_aside))
    description = describe_masks(run, model, drift) | {"audit": audit.end()}
    manifest, entries = write_manifest(journal, found, set_aside, removed, description)
    expected, remarks = journal.expected_dice(files), journal.remarks(files)
    answers = {file: journal.entries[file] for file in files}
    verdict = unknown_drift(model) if drift is None else drift.sentence()
    page = SiteReport(
        description, drift, verdict, method, choice.reason, entries, set_aside, remarks, time.perf_counter() - start,
        done, verify_audit(out).counts(),
    )  # fmt: skip
    report = write_site_report(out, page, model, found.images, most_pixels)
    return FolderResult(
        done, kept, set_aside, manifest, expected, method, choice.reason, stream, remarks,
        unusual={file: entry.unusual for file, entry in answers.items() if entry.unusual},
        edited=tuple(file for file in files if file in journal.edited), removed=removed, drift=drift,
        report=report,
    )  # fmt: skip
