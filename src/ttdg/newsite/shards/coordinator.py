"""Planning shards, running them on an executor, and merging their journals and audit logs."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ttdg.bench.executors import MAX_TRIES, Executor, Work, make_executor
from ttdg.bench.folder import exclusive_lock
from ttdg.data.unlabelled import InputFile
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.newsite.audit import FILE, read_chain
from ttdg.newsite.journal import SHARDS, JournalEntry, read_journal
from ttdg.newsite.session import Session
from ttdg.newsite.shards.cut import Shard, cut_into_shards
from ttdg.newsite.shards.request import ShardSettings
from ttdg.newsite.shards.worker import run_shard

POLL_SECONDS = 0.25  # between two checks of the workers
MOST_ROUNDS = 3  # the first finds unusable images, the second has the right cuts

Entries = dict[str, JournalEntry]


def answer_in_shards(
    session: Session, groups: Sequence[Sequence[InputFile]], settings: ShardSettings
) -> None:
    """Answer all images of a session in shards, with the answers, journal and audit log of one without shards.

    Shards are slices of the files between batches. Which images a batch has depends on the unusable images before it,
    and these are known only when they have been read. So the first cuts assume that all images are usable, and slices
    in which that was wrong are answered again.

    Args:
        session: The session, which has begun. After this call its journal, log and sets of files are those of a run
            without shards.
        groups: The images to answer, in groups of which no batch has images of two.
        settings: What all shards share.
    """
    folder = settings.out / SHARDS
    with exclusive_lock(folder / ".lock", wait=False):
        plan, earlier = _Plan(folder, settings, session.audit.count), _earlier_entries(session, groups)
        work = Work(partial(run_shard, settings=settings), folder, settings.threads)
        executor = make_executor(settings.sharding.executor, work, settings.sharding.machines())
        shards = plan.cut(groups)
        seen, finished = _read_entries(folder, shards), set[str]()
        try:
            for _ in range(MOST_ROUNDS):
                left = {key: _spec(session, s, earlier) for key, s in shards.items() if key not in finished}
                _run(left, executor, partial(_report, session, folder, shards))
                finished |= left.keys()
                entries = _read_entries(folder, shards)
                if not plan.learn(entries):
                    break
                shards = plan.cut(groups)
            else:
                raise UserError("the images change while they are read; run the same command again")
        finally:
            executor.close()
        _merge(session, folder, shards, entries, seen, plan.lines)


def _earlier_entries(session: Session, groups: Sequence[Sequence[InputFile]]) -> Entries:
    """Take the earlier answers to the images out of the journal, but for masks that were changed by hand.

    The shards write over these masks, and a later call must not take them for changed by hand.
    """
    journal, files = session.journal, [image.file for group in groups for image in group]
    earlier = {file: journal.entries.pop(file) for file in files if file in journal.entries}
    journal.entries |= {file: earlier[file] for file in earlier.keys() & journal.edited}
    journal.begin(session.run)
    return earlier


class _Plan:
    """The file `plan.json`: the run, its unusable images, and the length of the audit log before it.

    It is written before a shard starts, so that an interrupted run is continued with the same cuts.
    """

    def __init__(self, folder: Path, settings: ShardSettings, lines: int) -> None:
        self.path, self.settings = folder / "plan.json", settings
        self.run = json.loads(json.dumps([asdict(settings.run), settings.learned, settings.finished]))
        stored: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        same = stored.get("run") == self.run
        self.unusable: list[str] = stored["unusable"] if same else []
        self.lines: int = stored["lines"] if same else lines

    def cut(self, groups: Sequence[Sequence[InputFile]]) -> dict[str, Shard]:
        """Return key → shard, write the plan, and remove the folders of other cuts."""
        settings = self.settings
        shards = cut_into_shards(groups, settings.run.batch, settings.sharding.count, set(self.unusable))
        keyed = {shard.key(json.dumps(self.run)): shard for shard in shards}
        plan = {"run": self.run, "unusable": self.unusable, "lines": self.lines}
        write_text(self.path, json.dumps(plan))
        for path in self.path.parent.iterdir():
            if (path / ".lock").exists() and path.name not in keyed:
                shutil.rmtree(path)
        return keyed

    def learn(self, entries: Mapping[str, JournalEntry]) -> bool:
        """Take over which images are unusable; return whether that was not known before."""
        known = self.unusable
        self.unusable = sorted(
            file for file, entry in entries.items() if entry.unusual or entry.status == "set aside"
        )
        return self.unusable != known


def _spec(session: Session, shard: Shard, earlier: Entries) -> dict[str, Any]:
    """Return the specification of a job: what `run_shard` needs to know of one shard."""
    images = [image for group in shard.groups for image in group]
    units = {image.stack.name if image.stack else image.file for image in images}
    return {
        "shard": shard,
        "names": {unit: session.names[unit] for unit in units},
        "entries": {file: earlier[file] for file in shard.files if file in earlier},
        "edited": frozenset(shard.files) & session.journal.edited,
    }


def _run(jobs: Mapping[str, Mapping[str, Any]], executor: Executor, report: Callable[[], None]) -> None:
    """Run all jobs. One whose worker dies continues in another worker, up to `MAX_TRIES` times in all."""
    waiting, running, tries, failed = list(jobs), set[str](), Counter[str](), dict[str, str]()
    while waiting or running:
        while waiting and len(running) < executor.slots:
            key = waiting.pop(0)
            running.add(key)
            tries[key] += 1
            executor.submit(key, jobs[key])
        for outcome in executor.wait(POLL_SECONDS):
            running.discard(outcome.key)
            if outcome.lost and tries[outcome.key] < MAX_TRIES:
                waiting.append(outcome.key)
            elif outcome.fatal:
                raise UserError(str(outcome.error))
            elif outcome.error is not None:
                failed[outcome.key] = outcome.error
        report()
    if failed:
        key, error = next(iter(failed.items()))
        raise UserError(
            f"{len(failed)} of {len(jobs)} shards failed (shard {key}: {error}; its log is in {SHARDS}/{key}/log.txt "
            "of the output folder); run the same command again: finished answers are kept"
        )


def _report(session: Session, folder: Path, shards: Mapping[str, Shard]) -> None:
    """Report the number of images that all shards have processed."""
    done = 0
    for key in shards:
        with suppress(OSError, ValueError):
            done += int((folder / key / "progress.txt").read_text())
    session.progress(len(session.final) + done, len(session.inputs))


def _read_entries(folder: Path, shards: Mapping[str, Shard]) -> Entries:
    """Return the entries of all shards, each with its own images only."""
    entries: Entries = {}
    for key, shard in shards.items():
        written = read_journal(folder / key / "journal.jsonl").entries
        entries |= {file: written[file] for file in shard.files if file in written}
    return entries


def _merge(
    session: Session, folder: Path, shards: Mapping[str, Shard], entries: Entries, seen: Entries, since: int
) -> None:
    """Take over the entries of all shards, and the lines of their audit logs in the order of the files.

    Args:
        session: The session of the whole folder.
        folder: The folder of all shards.
        shards: Key → shard.
        entries: The entries of all shards.
        seen: Those that were there before this call.
        since: Length of the audit log of the output folder before the run.
    """
    missing = [file for shard in shards.values() for file in shard.files if file not in entries]
    if missing:
        raise UserError(
            f"{len(missing)} images have no answer, for example {missing[0]}; run the command again"
        )
    lines: list[dict[str, Any]] = []
    for key in shards:
        found, problems = read_chain(folder / key / FILE)
        if problems:
            raise UserError(
                f"the audit log of shard {key} is broken ({problems[0]}); ask for all answers again"
            )
        lines += [line for line in found if line["event"] in ("answers", "mask")]
    session.audit.adopt(lines, since)
    session.journal.adopt(entries, seen)
    session.journal.begin(session.run)
    for file, entry in entries.items():
        if entry.status == "set aside":
            session.set_aside[file] = entry.reason
        elif file in session.journal.kept or file in session.journal.edited:
            session.kept.add(file)
        else:
            session.done.add(file)
