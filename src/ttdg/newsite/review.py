"""The order in which a person should look at the answers of a folder, and `review.csv`, which lists them so."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from ttdg.files import atomic_file
from ttdg.newsite.journal import JournalEntry
from ttdg.safety.review import review_order, review_priority

COLUMNS = (
    "review", "file", "expected_dice", "expected_low", "expected_high", "confidence", "unusual", "gate", "mask",
    "overlay",
)  # fmt: skip


def review_places(entries: Sequence[JournalEntry]) -> Mapping[str, int]:
    """Return the place of each answered file, from 1: those that most probably failed come first."""
    if len(entries) < 2:
        return {entry.file: 1 for entry in entries}
    return review_order(
        {
            entry.file: review_priority(
                entry.expected_dice,
                entry.expected_low,
                entry.expected_high,
                entry.confidence,
                bool(entry.unusual),
            )
            for entry in entries
        }
    )


def write_review(folder: Path, entries: Sequence[JournalEntry]) -> Path:
    """Write `review.csv` with one row for each answer, in the order of review."""
    path = folder / "review.csv"
    with (
        atomic_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out,
    ):
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([getattr(entry, column) for column in COLUMNS] for entry in entries)
    return path
