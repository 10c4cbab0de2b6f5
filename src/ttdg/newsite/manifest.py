"""The manifest: `manifest.csv` with a row for every file found, and `manifest.json` with what made the masks."""

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ttdg.files import atomic_file
from ttdg.newsite.inputs import FoundFiles
from ttdg.newsite.journal import Journal, JournalEntry
from ttdg.newsite.review import review_places, write_review

EDITED = "the mask was changed after it was written, and is kept"


def write_manifest(
    journal: Journal,
    found: FoundFiles,
    set_aside: Mapping[str, str],
    removed: Sequence[str],
    description: Mapping[str, Any],
) -> tuple[Path, list[JournalEntry]]:
    """Write both files and `review.csv`; return the path of `manifest.csv`, and the answers in the order of review.

    The status of a file is `segmented`, `kept` (answered before the latest files were added, or changed by hand),
    `set aside`, `ignored` or `input removed`.

    Args:
        journal: The answers.
        found: Every file of the inputs.
        set_aside: Files that were not segmented, and why.
        removed: Files with an answer that are no longer among the inputs.
        description: The content of `manifest.json`.
    """
    rows = {image.file: _row(journal, journal.entries[image.file]) for image in found.images}
    answered = [row for row in rows.values() if row.mask]
    places = review_places(answered)
    rows |= {row.file: replace(row, review=places[row.file]) for row in answered}
    write_review(journal.folder, answers_in_order(rows.values()))
    for status, files in (("set aside", set_aside), ("ignored", found.ignored)):
        rows |= {
            file: JournalEntry(file, status, reason)
            for file, reason in files.items()
            if file not in rows or rows[file].status != status
        }
    for file in removed:
        reason = f"{file} is no longer among the inputs, but its mask is there"
        rows[file] = replace(journal.entries[file], status="input removed", reason=reason)
    path = journal.folder / "manifest.csv"
    with (
        atomic_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out,
    ):
        writer = csv.DictWriter(out, list(JournalEntry.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(rows[file]) for file in sorted(rows))
    table = {"manifest_csv_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    with atomic_file(journal.folder / "manifest.json") as temporary:
        temporary.write_text(json.dumps({**description, **table}, indent=2) + "\n", encoding="utf-8")
    return path, answers_in_order(rows.values())


def answers_in_order(rows: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Return the rows of answered files in the order of review."""
    return sorted((row for row in rows if row.review is not None), key=lambda row: row.review or 0)


def _row(journal: Journal, entry: JournalEntry) -> JournalEntry:
    if entry.status != "done":
        return entry
    if entry.file in journal.edited:
        return replace(entry, status="kept", reason=EDITED)
    return replace(entry, status="segmented" if entry.round == journal.finished else "kept")
