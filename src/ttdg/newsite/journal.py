"""The journal of a run over a folder: one JSON line per file, from which an interrupted run resumes."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.fields import wrong_field
from ttdg.files import atomic_file
from ttdg.newsite.names import is_output_name

REPLACED = "replaced"  # status of an answer that a call has begun to replace
PARTS = "parts"  # folder of the answers to frames whose mask is not complete
SHARDS = "shards"  # folder of the journals of shards, until their answers are complete
TEMPORARY = re.compile(r"\..*-[a-z0-9_]{8}(\.[a-z]+)?")  # names that `atomic_file` gives unfinished files


@dataclass(frozen=True)
class JournalEntry:
    """One input file: `done` with its mask and overlay, or `set aside` with the reason."""

    file: str  # name relative to the input folder
    status: str  # "done" or "set aside"
    reason: str = ""
    round: int = 0  # files that were answered by one call, or by one that was interrupted and its resumptions
    input_sha256: str = ""
    key: str = ""  # hash of all that the answer depends on: model, method, images of this and earlier batches
    mask: str = ""  # path relative to the output folder
    mask_sha256: str = ""
    overlay: str = ""  # path relative to the output folder
    width: int = 0
    height: int = 0
    foreground: float = 0.0  # share of pixels that are not background
    confidence: float = 0.0  # mean over pixels of the largest probability
    unusual: str = ""  # why the file is not this kind of image, if it was answered alone
    reading: str = ""  # the candidate that a self-assessing method chose
    expected_dice: float | None = None  # its expected Dice …
    expected_low: float | None = None  # … and the 80 % interval
    expected_high: float | None = None
    expected_unadapted: float | None = None  # expected Dice of the answer that is kept if no gain is expected
    gate: str = ""  # "accepted", or why the source's answer was used instead
    review: int | None = None  # place in the order of review, in the manifest only
    remark: str = ""  # what the method says about its treatment of the site
    version: str = ""  # of ttdg
    holder: str = ""  # the file that holds the frame, if it holds several
    stack: str = ""  # the file or series whose mask holds the frame, for DICOM and NIfTI

    @property
    def input(self) -> str:
        """The name of the file: that which holds the frame, if it holds several."""
        return self.holder or self.file


@dataclass
class WrittenJournal:
    """The content of a journal file."""

    run: dict[str, Any] = field(default_factory=dict)  # the description of the run
    entries: dict[str, JournalEntry] = field(default_factory=dict)  # the latest entry of every file
    finished: int = 0  # the number of finished rounds


def read_journal(path: Path) -> WrittenJournal:
    """Read a journal; an absent file is empty, and lines that are no entry are skipped."""
    written = WrittenJournal()
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(line), dict):
                _take(written, value)
    return written


def _take(written: WrittenJournal, line: Mapping[str, Any]) -> None:
    if isinstance(line.get("run"), dict):
        written.run = line["run"]
    elif isinstance(line.get("finished"), int):
        written.finished = line["finished"]
    else:
        with suppress(TypeError):
            entry = JournalEntry(**line)
            expected = {
                value is None for value in (entry.expected_dice, entry.expected_low, entry.expected_high)
            }
            if (
                wrong_field(entry) is None
                and len(expected) == 1
                and all(map(is_output_name, (entry.mask, entry.overlay)))
            ):
                written.entries[entry.file] = entry


class Journal:
    """The file `journal.jsonl`, to which entries are appended during a run.

    Its first line is the description of the run. A line that was cut off when a run was killed is dropped, so that its
    file is processed again. Nothing is written before `begin`.

    Args:
        folder: The output folder.
        again: Ignore the answers of earlier calls.
        path: Another place of the journal, for a shard of the folder.

    Attributes:
        folder: The output folder.
        entries: The latest entry of every file.
        finished: The number of finished rounds.
        edited: Files whose mask is not the one that was written.
        kept: File → key of the answers of earlier calls whose mask and overlay still exist.
    """

    def __init__(self, folder: Path, again: bool = False, path: Path | None = None) -> None:
        self.folder, self.path = folder, path or folder / "journal.jsonl"
        written = WrittenJournal() if again else read_journal(self.path)
        self.run, self.entries, self.finished = written.run, written.entries, written.finished
        if self.entries and not self.run:
            raise UserError(
                "the output folder holds answers of an earlier version of ttdg; choose another output folder, or ask "
                "for all answers again"
            )
        done = [entry for entry in self.entries.values() if entry.status == "done"]
        digests = {mask: file_digest(folder / mask) for mask in {entry.mask for entry in done}}
        masks = {entry.file: digests[entry.mask] for entry in done}
        self.edited = {entry.file for entry in done if masks[entry.file] not in ("", entry.mask_sha256)}
        self.kept = {
            entry.file: entry.key
            for entry in done
            if masks[entry.file] and (not entry.overlay or os.path.isfile(folder / entry.overlay))
        }

    def begin(self, run: Mapping[str, Any]) -> None:
        """Remove what a killed call left half-written, and write the journal without its damaged lines.

        A shard removes nothing, because other shards are writing.
        """
        if self.path.parent == self.folder:
            self._remove_unfinished()
        lines = [{"run": run}, *map(asdict, self.entries.values()), {"finished": self.finished}]
        with atomic_file(self.path) as temporary:
            temporary.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    def _remove_unfinished(self) -> None:
        for place in (self.folder / name for name in ("masks", "overlays", "probabilities", "state", PARTS)):
            for path in place.rglob(".*"):
                if TEMPORARY.fullmatch(path.name) and path.is_file():
                    path.unlink()
        for path in (*self.folder.glob(".journal-*"), *self.folder.glob(".manifest-*")):
            path.unlink()

    def expected_dice(self, files: Sequence[str]) -> dict[str, float]:
        """Return the expected Dice of those files that were answered by a self-assessing method."""
        entries = [self.entries[file] for file in files if file in self.entries]
        return {
            entry.file: entry.expected_dice
            for entry in entries
            if entry.status == "done" and entry.expected_dice is not None
        }

    def remarks(self, files: Sequence[str]) -> dict[str, int]:
        """Return what methods said of the answers to these files, each with the number of files."""
        entries = [self.entries[file] for file in files if file in self.entries]
        return dict(Counter(entry.remark for entry in entries if entry.remark))

    def outputs(self, file: str) -> set[str]:
        """Return the paths of the mask and the overlay of a file, relative to the output folder."""
        entry = self.entries.get(file)
        return {path for path in (entry.mask, entry.overlay) if path} if entry is not None else set()

    def names(self) -> dict[str, str]:
        """Return file or stack → name of its mask below `masks/`, without the suffix."""
        done = [entry for entry in self.entries.values() if entry.mask]
        return {entry.stack or entry.file: mask_name(entry.mask) for entry in done}

    def removed(self, files: Sequence[str]) -> dict[str, list[JournalEntry]]:
        """Return the answered inputs that hold none of `files` and still have a mask, with their answers."""
        there = {self.entries[file].input for file in files if file in self.entries}
        gone: dict[str, list[JournalEntry]] = {}
        for entry in sorted(self.entries.values(), key=lambda entry: entry.file):
            if entry.input not in there and entry.mask and os.path.isfile(self.folder / entry.mask):
                gone.setdefault(entry.input, []).append(entry)
        return gone

    def add(self, *entries: JournalEntry) -> None:
        """Append entries and flush them to disk."""
        self.entries |= {entry.file: entry for entry in entries}
        self._append(*map(asdict, entries))

    def reopen(self, files: Sequence[str]) -> None:
        """State that answers are about to be replaced.

        If the call is killed before it adds the new entries, the next one takes no new mask for changed by hand.
        """
        earlier = [self.entries[file] for file in files if file in self.entries]
        if answered := [entry for entry in earlier if entry.mask]:
            self.add(*(replace(entry, status=REPLACED) for entry in answered))

    def adopt(self, entries: Mapping[str, JournalEntry], before: Mapping[str, JournalEntry]) -> None:
        """Take over the entries of shards, of which those in `before` were written by an earlier call.

        A mask of an earlier call that is not the one that was written counts as changed by hand.
        """
        self.entries |= entries
        kept = [entry for file, entry in entries.items() if entry.mask and before.get(file) == entry]
        self.edited |= {
            entry.file
            for entry in kept
            if file_digest(self.folder / entry.mask) not in ("", entry.mask_sha256)
        }
        self.kept = {entry.file: entry.key for entry in kept}

    def finish(self) -> None:
        """State that all files of the current round have been answered or set aside."""
        self.finished += 1
        self._append({"finished": self.finished})

    def _append(self, *lines: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())


def answer_key(*parts: str) -> str:
    """Return a hash of all that an answer depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def mask_name(mask: str) -> str:
    """Return the name in the path of a mask, or of a part of it."""
    if mask.startswith(f"{PARTS}/"):
        return mask.removeprefix(f"{PARTS}/").rpartition("/")[0]
    suffix = next((suffix for suffix in (".png", ".dcm", ".nii.gz", ".nii") if mask.endswith(suffix)), "")
    return mask.removeprefix("masks/").removesuffix(suffix)


def file_digest(path: Path) -> str:
    """Return the hash of a file, or an empty text if it cannot be read."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""
