"""The journal of a run over a folder: one JSON line per file, from which an interrupted run resumes."""

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ttdg.errors import UserError
from ttdg.files import atomic_file


@dataclass(frozen=True)
class JournalEntry:
    """One input file: `done` with its mask and overlay, or `set aside` with the reason."""

    file: str  # file name
    status: str  # "done" or "set aside"
    reason: str = ""
    key: str = ""  # hash of all that the answer depends on: model, method, images of this and earlier batches
    mask: str = ""  # path relative to the output folder
    overlay: str = ""  # path relative to the output folder
    width: int = 0
    height: int = 0
    foreground: float = 0.0  # share of pixels that are not background
    confidence: float = 0.0  # mean over pixels of the largest probability
    reading: str = ""  # the candidate that a self-assessing method chose
    expected_dice: float | None = None  # its expected Dice …
    expected_low: float | None = None  # … and the 80 % interval
    expected_high: float | None = None
    remark: str = ""  # what the method says about its treatment of the site


class Journal:
    """The file `journal.jsonl`, to which entries are appended during a run.

    The file is created with the first new entry. A line that was cut off when a run was killed is dropped, so that its
    file is processed again.

    Attributes:
        folder: The output folder.
        entries: The latest entry of every file.
        kept: File → key of the answers of earlier runs whose mask and overlay still exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self._clean = folder, folder / "journal.jsonl", False
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise UserError(f"cannot write to the folder {folder}; choose another output folder")
        self.entries = {entry.file: entry for entry in self._read()}
        self.kept = {
            entry.file: entry.key
            for entry in self.entries.values()
            if entry.status == "done"
            and all((folder / name).is_file() for name in (entry.mask, entry.overlay) if name)
        }

    def _read(self) -> Iterator[JournalEntry]:
        """Yield the entries of the file in their order; lines that are no entry are skipped."""
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        for line in text.splitlines():
            with suppress(ValueError, TypeError):
                yield JournalEntry(**json.loads(line))

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

    def add(self, *entries: JournalEntry) -> None:
        """Append entries and flush them to disk. The first call also removes lines that are no entry."""
        self.entries |= {entry.file: entry for entry in entries}
        lines = "".join(
            f"{json.dumps(asdict(entry))}\n" for entry in (entries if self._clean else self.entries.values())
        )
        if self._clean:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        else:
            with atomic_file(self.path) as temporary:
                temporary.write_text(lines, encoding="utf-8")
            self._clean = True

    def write_manifest(self, files: Sequence[str]) -> Path:
        """Write `manifest.csv` with a row for each of `files`, in their order, and return its path."""
        rows = [asdict(self.entries[name]) for name in files if name in self.entries]
        with atomic_file(self.folder / "manifest.csv") as temporary, temporary.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(JournalEntry.__dataclass_fields__), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return self.folder / "manifest.csv"


def answer_key(*parts: str) -> str:
    """Return a hash of all that an answer depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
