"""Learning and answering the images of a plan, in this process or in shards."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import torch

import ttdg
from ttdg.adaptation.adapter import Progress
from ttdg.data.unlabelled import InputFile, read_new_images
from ttdg.newsite.answers import draw_missing_overlays
from ttdg.newsite.audit import AuditLog
from ttdg.newsite.journal import SHARDS
from ttdg.newsite.names import output_names
from ttdg.newsite.rounds import Rounds, sort_into_rounds
from ttdg.newsite.session import Answered, LearnedSite, Read, Session
from ttdg.newsite.site_check import SourceKind
from ttdg.newsite.stacks.masks import StackMasks
from ttdg.newsite.stacks.segmentation_object import Maker
from ttdg.newsite.stages.request import FolderPlan

if TYPE_CHECKING:
    from ttdg.newsite.shards import Sharding


def answer_folder(plan: FolderPlan, progress: Progress, learning: Progress, answered: Answered) -> Session:
    """Answer all images of a plan that have no final answer, and end the round of the journal.

    Args:
        plan: What is to be done.
        progress: Called with the number of processed images and of all images.
        learning: Called with the number of finished steps of learning and of all steps.
        answered: Called with each batch and its logits; not called with shards.

    Returns:
        The session, whose journal holds an entry for every image.
    """
    request, journal = plan.request, plan.journal
    if request.again:
        shutil.rmtree(request.out / SHARDS, ignore_errors=True)
    rounds, saved = sort_into_rounds(plan.found.images, journal, request.most_pixels), plan.saved_state()
    session = _open_session(plan, rounds, progress, answered)
    groups = rounds.groups(plan.memory) if rounds.present else []
    read = partial(
        read_new_images, groups, request.model.card.benchmark, request.batch, _device(plan),
        most_pixels=request.most_pixels, workers=request.workers, foreign=SourceKind(request.model),
    )  # fmt: skip
    session.begin(plan.memory)
    if request.shards is not None:
        journal.kept.clear()  # each shard looks for its own earlier answers
    learned = None
    if plan.memory and plan.stream == "folder" and rounds.present:
        batches = sum(-(-len(group) // request.batch) for group in groups)
        learned = session.learn(read, plan.key, saved=saved, batches=batches, learning=learning)
    if request.shards is None:
        online = plan.memory and plan.stream == "online"
        session.answer(
            read, plan.key, learned=learned, learns_on_the_way=online, saved=saved, overlays=request.overlays
        )
    else:
        _answer_in_shards(session, plan, request.shards, rounds.groups(False), learned)
    if request.overlays:  # of answers that were made without them
        draw_missing_overlays(journal, plan.found.images, request.model.card.benchmark, _reader(plan))
    if rounds.present:
        journal.finish()
    if saved is not None:
        saved.remove()
    if request.shards is not None:
        shutil.rmtree(request.out / SHARDS)
    return session


def _open_session(plan: FolderPlan, rounds: Rounds, progress: Progress, answered: Answered) -> Session:
    request, images = plan.request, plan.found.images
    units = list(dict.fromkeys(image.stack.name if image.stack else image.file for image in images))
    stacks = {image.stack.name for image in images if image.stack}
    stacks |= {entry.stack for entry in plan.journal.entries.values() if entry.stack}
    refused = {each.file: each.reason for each in rounds.refused}
    return Session(
        request.model, plan.adapter, plan.journal, asdict(plan.run), {image.file: image for image in images},
        output_names(units, plan.journal.names(), stacks),
        StackMasks(request.out, request.model.card.benchmark, _maker(plan)), rounds.final(),
        dict(plan.found.set_aside) | refused, progress, AuditLog(request.out), answered, request.probabilities,
        request.most_pixels,
    )  # fmt: skip


def _answer_in_shards(
    session: Session, plan: FolderPlan, shards: "Sharding", groups: Sequence[Sequence[InputFile]],
    learned: LearnedSite | None,
) -> None:  # fmt: skip
    from ttdg.newsite.shards import ShardSettings, answer_in_shards

    request = plan.request
    settings = ShardSettings(
        request.out.resolve(), shards, shards.threads_of_shard(), plan.run, request.options, plan.policy,
        _maker(plan), plan.key, learned, plan.journal.finished, request.overlays, request.workers,
        request.most_pixels, request.probabilities,
    )  # fmt: skip
    answer_in_shards(session, groups, settings)


def _reader(plan: FolderPlan) -> Read:
    """Return a function that reads pictures of images whose answers are there."""
    request = plan.request
    return partial(
        read_new_images, benchmark=request.model.card.benchmark, batch_size=request.batch, device=_device(plan),
        pictures=True, most_pixels=request.most_pixels, workers=request.workers, on_error=lambda refused: None,
    )  # fmt: skip


def _maker(plan: FolderPlan) -> Maker:
    """Return what a DICOM segmentation says of its origin."""
    request = plan.request
    return Maker(plan.choice.method, request.model.card.sha256, ttdg.__version__, request.keep_identity)


def _device(plan: FolderPlan) -> torch.device:
    return next(plan.request.model.network.parameters()).device
