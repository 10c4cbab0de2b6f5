"""Answering one shard in a worker process. Its journal and its audit log are in a folder of their own."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from ttdg.adaptation import METHODS, Resumable, build_adapter
from ttdg.adaptation.gate import gate
from ttdg.bench.executors import Outcome
from ttdg.bench.executors.attempt import attempt
from ttdg.bench.folder import exclusive_lock
from ttdg.checkpoints import Model, load
from ttdg.data.unlabelled import read_new_images
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.newsite.audit import AuditLog
from ttdg.newsite.journal import SHARDS, Journal, JournalEntry
from ttdg.newsite.run import describe_run
from ttdg.newsite.run_state import RunState
from ttdg.newsite.session import Session
from ttdg.newsite.shards.cut import Shard
from ttdg.newsite.shards.request import ShardSettings
from ttdg.newsite.site_check import SourceKind
from ttdg.newsite.stacks.masks import StackMasks

SECONDS = 0.5  # least time between two reports of progress


def run_shard(key: str, spec: Mapping[str, Any], settings: ShardSettings) -> Outcome:
    """Answer a shard and return how that ended; the traceback of a failure is in the log of the shard."""
    folder = settings.out / SHARDS / key
    return attempt(key, partial(_answer, folder, settings, **spec), folder / "log.txt", settings.out)


def _answer(
    folder: Path,
    settings: ShardSettings,
    shard: Shard,
    names: Mapping[str, str],
    entries: Mapping[str, JournalEntry],
    edited: frozenset[str],
) -> None:
    """Answer the images of a shard that have no valid answer in its journal.

    Args:
        folder: The folder of the shard.
        settings: What all shards share.
        shard: The images.
        names: File or stack → name of its mask.
        entries: Earlier answers to its images, which are not in the journal of the shard.
        edited: Those of them whose mask was changed by hand, and is kept.
    """
    run, sharding = settings.run, settings.sharding
    torch.set_num_threads(settings.threads)
    with exclusive_lock(folder / ".lock"):  # a worker that was believed dead may still write
        model = _model(sharding.model, sharding.device)
        if run != describe_run(
            model, run.method, settings.options, run.views, run.batch, run.stream, settings.policy
        ):
            raise UserError(
                f"{sharding.model} is another model here than where the run was started; copy it again"
            )
        benchmark, memory = model.card.benchmark, METHODS[run.method].memory
        adapter = build_adapter(model, run.method, settings.options, run.views)
        if settings.policy is not None:
            adapter = gate(adapter, model, benchmark.regions, settings.policy, memory)
        if settings.learned is not None:
            assert isinstance(adapter, Resumable)
            if not RunState(settings.out, settings.key, adapter).load(settings.learned.key):
                raise UserError(
                    f"the state that was learned is not in {settings.out / 'state'}; run the same command again"
                )
        journal = Journal(settings.out, path=folder / "journal.jsonl")
        journal.finished, journal.edited = settings.finished, journal.edited | edited
        journal.entries = {**entries, **journal.entries}
        inputs = {image.file: image for group in shard.groups for image in group}
        session = Session(
            model, adapter, journal, asdict(run), inputs, names, StackMasks(settings.out, benchmark, settings.maker),
            frozenset(), {}, _Reports(folder / "progress.txt"), AuditLog(folder),
            probabilities=settings.probabilities, most_pixels=settings.most_pixels,
        )  # fmt: skip
        read = partial(
            read_new_images, shard.groups, benchmark, run.batch, next(model.network.parameters()).device,
            most_pixels=settings.most_pixels, workers=settings.workers or settings.threads, foreign=SourceKind(model),
        )  # fmt: skip
        session.begin(memory)
        session.answer(
            read, settings.key, learned=settings.learned, learns_on_the_way=False, saved=None,
            overlays=settings.overlays,
        )  # fmt: skip


@lru_cache(1)
def _model(path: str, device: str) -> Model:
    """Load a model once for all shards that a process answers."""
    return load(path, device)


class _Reports:
    """Writes the number of processed images into a file, at most every `SECONDS`."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0

    def __call__(self, done: int, total: int) -> None:
        if done == total or time.monotonic() - self.last > SECONDS:
            write_text(self.path, str(done))
            self.last = time.monotonic()
