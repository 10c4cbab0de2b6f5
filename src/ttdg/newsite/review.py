"""The order in which a person should look at the answers of a folder, and `review.csv`, which lists them so."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def write_review(folder: Path, answers: Iterable[Mapping[str, Any]]) -> Path:
    """Write `review.csv` with one row for each answer, from rows of the manifest in the order of review."""
    path = folder / "review.csv"
    with atomic_file(path) as temporary:
        temporary.write_bytes(table_bytes(COLUMNS, answers))
    return path


def table_bytes(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a table as the bytes of its csv file; names that are no text keep their bytes."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")
