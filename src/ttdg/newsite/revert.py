"""Going back to an earlier state of an output folder: answers after a line of the audit log are withdrawn."""

import csv
import json
import os
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.files import atomic_file
from ttdg.newsite.audit import AuditLog, verify_audit
from ttdg.newsite.journal import Journal
from ttdg.newsite.manifest import write_description


def revert(folder: Path, to: int) -> tuple[str, ...]:
    """Withdraw every answer that was given after line `to` of the audit log, and return the names of their files.

    Masks and overlays move to `reverted/`. The next prediction with the same model and options answers the files again:
    a method with memory first processes the earlier ones, which brings it into the state of that line. The log itself
    only grows: the return is its last line.
    """
    report = verify_audit(folder)
    if report.problems:
        raise UserError(f"the audit log of {folder} is broken ({report.problems[0]}); nothing was reverted")
    if not 0 <= to <= len(report.lines):
        raise UserError(
            f"the audit log has the lines 1 to {len(report.lines)}; choose one of them, or 0 for the start"
        )
    description = _description(folder)
    journal, log = Journal(folder), AuditLog(folder)
    log.open()
    files = tuple(dict.fromkeys(answer["file"] for number, answer in report.answers() if number > to))
    withdrawn = {file: journal.entries.pop(file) for file in files if file in journal.entries}
    masks = [entry.mask for entry in withdrawn.values()]
    log.add("revert", to=to, files=list(withdrawn), masks=masks)
    journal.begin(journal.run)
    for entry in withdrawn.values():
        for name in (entry.mask, entry.overlay):
            if name and os.path.isfile(folder / name):
                target = folder / "reverted" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder / name, target)
    _mark_rows(folder / "manifest.csv", set(withdrawn), to)
    if description is not None:  # it states the hash of the changed table and the new end of the log
        write_description(folder, {**description, "audit": log.end()})
    return tuple(withdrawn)


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


def _mark_rows(path: Path, files: set[str], to: int) -> None:
    """Give the rows of withdrawn files the status `reverted`."""
    if not path.is_file():
        return
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
        reader = csv.DictReader(opened)
        columns, rows = list(reader.fieldnames or ()), list[dict[str, Any]](reader)
    for row in rows:
        if row.get("file") in files:
            row |= {
                "status": "reverted",
                "reason": f"withdrawn: the folder went back to line {to}",
                "mask": "",
                "overlay": "",
            }
    with (
        atomic_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out,
    ):
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
