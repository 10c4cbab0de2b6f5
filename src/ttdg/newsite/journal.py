"""What a run over a folder has done so far: one JSON line a file, so that a killed run goes on where it was."""

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ttdg.files import atomic_file


@dataclass(frozen=True)
class JournalEntry:
    """One input file: `done` with its mask and overlay, or `set aside` with the reason."""

    file: str
    status: str
    reason: str = ""
    key: str = (
        ""  # hash of everything the answer depends on: model, method, images of the batch, and before it
    )
    mask: str = ""
    overlay: str = ""
    width: int = 0
    height: int = 0
    foreground: float = 0.0  # share of the image
    confidence: float = 0.0  # mean over pixels of the largest probability
    reading: str = ""  # which reading of the image a method that judges chose …
    expected_dice: float | None = None  # … what it expects it to score …
    expected_low: float | None = None  # … and the 80 % interval of that
    expected_high: float | None = None


class Journal:
    """`journal.jsonl`: appended as the run goes; a line torn by a kill is dropped, its file done again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "journal.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.entries: dict[str, JournalEntry] = {}
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        for line in lines:
            try:
                entry = JournalEntry(**json.loads(line))
            except (ValueError, TypeError):
                continue
            self.entries[entry.file] = entry
        if lines and not lines[-1].endswith("\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def has(self, file: str, key: str) -> bool:
        """Was this very answer given, and are its files still there?"""
        entry = self.entries.get(file)
        if entry is None or entry.key != key or entry.status != "done":
            return False
        return all((self.folder / name).is_file() for name in (entry.mask, entry.overlay) if name)

    def expected(self, file: str) -> float | None:
        """The Dice expected of this file's mask, if it has one and somebody said."""
        entry = self.entries.get(file)
        return None if entry is None or entry.status != "done" else entry.expected_dice

    def add(self, *entries: JournalEntry) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for entry in entries:
                file.write(json.dumps(asdict(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.entries |= {entry.file: entry for entry in entries}

    def write_manifest(self, files: Sequence[str]) -> Path:
        """`manifest.csv`: one row for each of `files`, in their order."""
        rows = [asdict(self.entries[name]) for name in files if name in self.entries]
        with atomic_file(self.folder / "manifest.csv") as temporary, temporary.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(JournalEntry.__dataclass_fields__), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return self.folder / "manifest.csv"
