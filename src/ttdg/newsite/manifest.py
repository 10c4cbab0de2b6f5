"""The manifest: `manifest.csv` with a row for every file found, and `manifest.json` with what made the masks."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from ttdg.data.unlabelled import InputFile
from ttdg.files import atomic_file
from ttdg.newsite.audit_checks import TABLE
from ttdg.newsite.inputs import FoundFiles
from ttdg.newsite.journal import Journal, JournalEntry
from ttdg.newsite.review import review_places, table_bytes, write_review

EDITED = "the mask was changed after it was written, and is kept"


def manifest_table(
    journal: Journal,
    found: FoundFiles,
    set_aside: Mapping[str, str],
    removed: Mapping[str, Sequence[JournalEntry]],
) -> tuple[bytes, list[JournalEntry]]:
    """Return the content of `manifest.csv`, and the answers in the order of review.

    The status of a file is `segmented`, `kept` (answered before the latest files were added, or changed by hand),
    `set aside`, `ignored` or `input removed`.

    Args:
        journal: The answers.
        found: Every file of the inputs.
        set_aside: Files that were not segmented, and why.
        removed: Files that are no longer among the inputs, with their answers.
    """
    rows = _rows_by_input(journal, found.images)
    answered = [row for row in rows.values() if row.mask]
    places = review_places(answered)
    rows |= {row.file: replace(row, review=places[row.file]) for row in answered}
    for status, files in (("set aside", set_aside), ("ignored", found.ignored)):
        rows |= {
            file: JournalEntry(file, status, reason)
            for file, reason in files.items()
            if file not in rows or rows[file].status != status
        }
    for file, entries in removed.items():
        reason = f"{file} is no longer among the inputs, but its mask is there"
        rows[file] = replace(_joined(file, entries), status="input removed", reason=reason)
    columns = [name for name in JournalEntry.__dataclass_fields__ if name not in ("holder", "stack")]
    frames = Counter(_input(image) for image in found.images)
    lines = [asdict(rows[file]) | {"frames": frames.get(file, 0)} for file in sorted(rows)]
    return table_bytes([*columns, "frames"], lines), answers_in_order(rows.values())


def write_manifest(
    folder: Path, table: bytes, answers: Sequence[JournalEntry], description: Mapping[str, Any]
) -> Path:
    """Write `review.csv`, `manifest.csv` and `manifest.json`; return the path of `manifest.csv`.

    Args:
        folder: The output folder.
        table: The content of `manifest.csv`, whose hash the audit log already states.
        answers: The answers in the order of review.
        description: The content of `manifest.json`.
    """
    write_review(folder, map(asdict, answers))
    path = folder / "manifest.csv"
    with atomic_file(path) as temporary:
        temporary.write_bytes(table)
    write_description(folder, {**description, TABLE: hash_of(table)})
    return path


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write `manifest.json`."""
    text = json.dumps(description, indent=2) + "\n"
    with atomic_file(folder / "manifest.json") as temporary:
        temporary.write_text(text, encoding="utf-8")


def hash_of(content: bytes) -> str:
    """Return the hash of a table as `manifest.json` and the audit log state it."""
    return hashlib.sha256(content).hexdigest()


def answers_in_order(rows: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Return the rows of answered files in the order of review."""
    return sorted((row for row in rows if row.review is not None), key=lambda row: row.review or 0)


def by_input(reasons: Mapping[str, str], images: Mapping[str, InputFile]) -> dict[str, str]:
    """Return reasons by file. Frames are named only if other frames of their file have no reason, or another one."""
    frames: dict[str, list[str]] = {}
    for image in images.values():
        frames.setdefault(_input(image), []).append(image.file)
    result = {}
    for file, reason in reasons.items():
        holder = _input(images[file]) if file in images else file
        together = {reasons.get(name) for name in frames.get(holder, ())} == {reason}
        result[holder if together else file] = reason
    return result


def input_count(files: Iterable[str], images: Mapping[str, InputFile]) -> int:
    """Return the number of files that hold these images."""
    return len({_input(images[file]) for file in files if file in images})


def _rows_by_input(journal: Journal, images: Sequence[InputFile]) -> dict[str, JournalEntry]:
    """Return a row for each file."""
    return {
        name: _joined(name, [_row(journal, journal.entries[image.file]) for image in group])
        for name, group in groupby(images, _input)
    }


def _joined(name: str, frames: Sequence[JournalEntry]) -> JournalEntry:
    """Return the row of a file. That of several frames has the means of those that were answered."""
    answered = [frame for frame in frames if frame.mask]
    if not answered or not frames[0].holder:
        return replace(frames[0], file=name)
    return replace(
        answered[0], file=name, overlay=answered[0].overlay.rpartition("/")[0],
        foreground=_mean(answered, "foreground"), confidence=_mean(answered, "confidence"),
        expected_dice=_mean(answered, "expected_dice"),
        expected_low=_mean(answered, "expected_low"), expected_high=_mean(answered, "expected_high"),
        expected_unadapted=_mean(answered, "expected_unadapted"),
        unusual="; ".join(sorted({frame.unusual for frame in answered if frame.unusual})),
        reading=", ".join(sorted({frame.reading for frame in answered if frame.reading})),
        status="kept" if all(frame.status == "kept" for frame in answered) else "segmented",
    )  # fmt: skip


def _input(image: InputFile) -> str:
    """Return the name of the file that holds an image."""
    return image.holder or image.file


def _mean(entries: Sequence[JournalEntry], name: str) -> Any:
    """Return the mean of a field, or None if an entry has no value."""
    values = [getattr(entry, name) for entry in entries]
    return None if any(value is None for value in values) else fmean(values)


def _row(journal: Journal, entry: JournalEntry) -> JournalEntry:
    if entry.status != "done":
        return entry
    if entry.file in journal.edited:
        return replace(entry, status="kept", reason=EDITED)
    return replace(entry, status="segmented" if entry.round == journal.finished else "kept")
