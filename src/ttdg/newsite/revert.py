"""Going back to an earlier state of an output folder: answers after a line of the audit log are withdrawn."""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.files import atomic_file
from ttdg.newsite.audit import AuditLog, check_has_log, verify_audit
from ttdg.newsite.audit_checks import TABLE
from ttdg.newsite.journal import PARTS, Journal, JournalEntry, mask_name
from ttdg.newsite.lock import lock_output
from ttdg.newsite.manifest import hash_of, write_description
from ttdg.newsite.review import table_bytes, write_review

REVERTED = "reverted"  # folder of what was withdrawn, with a folder for each line of the log that withdrew it


def revert(folder: Path, to: int) -> tuple[str, ...]:
    """Withdraw every answer that was given after line `to` of the audit log, and return the names of their files.

    Masks, overlays, probability maps and the report move to `reverted/LINE/`, where LINE is that of the return in the
    log. The frames of a stack share a mask, so all of them are withdrawn if one is. The next prediction with the same
    model and options answers the files again: a method with memory first processes the earlier ones, which brings it
    into the state of that line. The log itself only grows: the return is its last line.
    """
    check_has_log(folder)
    with lock_output(folder):
        return _revert(folder, to)


def _revert(folder: Path, to: int) -> tuple[str, ...]:
    report = verify_audit(folder)
    if report.problems:
        raise UserError(
            f"the audit log of {folder} is broken or does not fit the folder ({report.problems[0]}); nothing was "
            "reverted"
        )
    if not 0 <= to <= len(report.lines):
        raise UserError(
            f"the audit log has the lines 1 to {len(report.lines)}; choose one of them, or 0 for the start"
        )
    description = _description(folder)
    journal, log = Journal(folder), AuditLog(folder)
    log.open()
    withdrawn = _withdraw(journal, [answer["file"] for number, answer in report.answers() if number > to])
    columns, rows = _read_table(folder / "manifest.csv")
    _mark_rows(rows, {name for entry in withdrawn for name in (entry.file, entry.holder)} - {""}, to)
    table = table_bytes(columns, rows)
    masks = list(dict.fromkeys(entry.mask for entry in withdrawn if entry.mask))
    facts = {TABLE: hash_of(table)} if columns else {}
    journal.begin(journal.run)  # before the log, so that it never holds an answer that the log has withdrawn
    log.add("revert", to=to, files=[entry.file for entry in withdrawn], masks=masks, **facts)
    if withdrawn:
        _move(folder, _outputs(folder, withdrawn), _free(folder / REVERTED / str(log.count)))
    if columns:
        with atomic_file(folder / "manifest.csv") as temporary:
            temporary.write_bytes(table)
        write_review(folder, sorted((row for row in rows if row.get("review")), key=_place))
    if description is not None:  # it states the hash of the changed table and the new end of the log
        write_description(folder, {**description, "audit": log.end(), **facts})
    return tuple(entry.file for entry in withdrawn)


def _withdraw(journal: Journal, files: Iterable[str]) -> list[JournalEntry]:
    """Take the answers to files out of a journal, with those to other frames of the same masks."""
    masks = {journal.entries[file].mask for file in files if file in journal.entries} - {""}
    withdrawn = [entry for entry in journal.entries.values() if entry.mask in masks]
    for entry in withdrawn:
        del journal.entries[entry.file]
    return withdrawn


def _outputs(folder: Path, withdrawn: Sequence[JournalEntry]) -> list[str]:
    """Return the paths of all that shows withdrawn answers, relative to the output folder."""
    names = [path for entry in withdrawn for path in (entry.mask, entry.overlay) if path]
    parts = {entry.mask for entry in withdrawn if entry.mask.startswith(f"{PARTS}/")}
    whole = {mask_name(entry.mask) for entry in withdrawn if entry.mask not in parts}
    stacks = {mask_name(entry.mask) for entry in withdrawn if entry.stack and entry.mask not in parts}
    shown = whole | {part.removeprefix(f"{PARTS}/").removesuffix(".png") for part in parts}
    maps = folder / "probabilities"
    for path in maps.rglob("*.png"):
        image = path.relative_to(maps).as_posix().rpartition("-")[0]  # the rest is the number of the label
        stack, _, frame = image.rpartition("/")
        if image in shown or (stack in stacks and frame.isdecimal()):
            names.append(path.relative_to(folder).as_posix())
    return list(dict.fromkeys([*names, "report.html"]))


def _move(folder: Path, names: Iterable[str], place: Path) -> None:
    """Move those of the named files that exist to a new folder."""
    for name in names:
        if os.path.isfile(folder / name):
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, target)


def _free(place: Path) -> Path:
    """Return a folder that does not exist yet, so that nothing in it is replaced."""
    others = (place.with_name(f"{place.name}-{number}") for number in count(2))
    return place if not place.exists() else next(other for other in others if not other.exists())


def _description(folder: Path) -> dict[str, Any] | None:
    """Return the content of `manifest.json`; None if it was not written yet. A damaged file is a `UserError`."""
    path = folder / "manifest.json"
    if not path.is_file() or not (folder / "manifest.csv").is_file():
        return None
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise UserError(f"{path} is damaged, and nothing was reverted; remove the file, then revert again")
    return description


def _read_table(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and rows of `manifest.csv`; no columns if it was not written yet."""
    if not path.is_file():
        return [], []
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
        reader = csv.DictReader(opened)
        return list(reader.fieldnames or ()), list(reader)


def _mark_rows(rows: Sequence[dict[str, Any]], files: set[str], to: int) -> None:
    """Give the rows of withdrawn files the status `reverted`, and number the places of the others again."""
    for row in rows:
        if row.get("file") in files:
            reason = f"withdrawn: the folder went back to line {to}"
            row |= {"status": "reverted", "reason": reason, "mask": "", "overlay": "", "review": ""}
    for place, row in enumerate(sorted((row for row in rows if row.get("review")), key=_place), 1):
        row["review"] = str(place)


def _place(row: Mapping[str, Any]) -> int:
    """Return the place of a row in the order of review; rows that were changed by hand to no number come last."""
    text = str(row.get("review"))
    return int(text) if text.isdecimal() else 10**9
