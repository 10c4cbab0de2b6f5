"""What the rest of an output folder says of its audit log: the manifest, the journal and the masks."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttdg.newsite.inputs import FILE_MANAGERS
from ttdg.newsite.journal import SHARDS, JournalEntry, file_digest, read_journal

TABLE = "manifest_csv_sha256"  # field of manifest.json and of the log: hash of manifest.csv

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class FolderState:
    """What an output folder holds beside its log.

    A running call writes to the log before it writes the journal and the manifest. So this is read before the log.
    """

    description: Mapping[str, Any]  # content of manifest.json; empty if it is missing or damaged
    table: str  # hash of manifest.csv; empty if it cannot be read
    entries: Sequence[JournalEntry]
    masks: Sequence[str]  # paths below masks/
    sharded: bool  # a prediction in shards is not finished


def read_state(folder: Path) -> FolderState:
    """Read all that the log of a folder is compared with, except for the content of masks."""
    description: Any = None
    with suppress(OSError, ValueError, RecursionError):
        description = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return FolderState(
        description if isinstance(description, dict) else {}, file_digest(folder / "manifest.csv"),
        list(read_journal(folder / "journal.jsonl").entries.values()), masks_on_disk(folder),
        (folder / SHARDS).exists(),
    )  # fmt: skip


def answers_of(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of a line, without those that lack a name or a hash: the line was changed."""
    files, names = line.get("files"), ("file", "mask", "mask_sha256")
    return [
        answer
        for answer in (files if isinstance(files, list) else ())
        if isinstance(answer, dict) and all(isinstance(answer.get(name), str) for name in names)
    ]


def manifest_problems(state: FolderState, lines: Lines) -> tuple[list[str], list[str]]:
    """Compare the log with `manifest.json`, and `manifest.csv` with both; return problems, and notes."""
    notes = list[str]()
    if not state.description:
        notes.append(
            "manifest.json is missing or damaged, so lines that were removed at the end of the log are found only "
            "if they named an answer; give the same prediction again to write it"
        )
    problems = [*_end_problem(state.description, lines), *_table_problem(state, lines)]
    return problems, notes


def _end_problem(stated: Mapping[str, Any], lines: Lines) -> list[str]:
    with suppress(ValueError, LookupError, TypeError, ArithmeticError):
        count, head = int(stated["audit"]["lines"]), stated["audit"]["head"]
        if len(lines) < count:
            return [
                f"the manifest states {count} lines, but {len(lines)} are there: lines were removed at the end"
            ]
        if count and lines[count - 1]["hash"] != head:
            return [f"line {count} does not have the hash that the manifest states"]
    return []


def _table_problem(state: FolderState, lines: Lines) -> list[str]:
    """Compare the table with the hashes that `manifest.json` and the log state.

    A call that is killed at its end may leave a table of the last line beside the `manifest.json` of the call before.
    """
    logged = [str(line[TABLE]) for line in lines if TABLE in line]
    wanted, stated = set(logged[-1:]), state.description
    if stated.get(TABLE) and (not logged or stated[TABLE] in logged):
        wanted.add(str(stated[TABLE]))
    if not wanted or state.table in wanted:
        return []
    if not state.table:
        return ["manifest.csv cannot be read, but manifest.json states its hash"] if stated else []
    return ["manifest.csv was changed after it was written; give the same prediction again to write it anew"]


def answer_problems(state: FolderState, lines: Lines) -> tuple[list[str], list[str]]:
    """Look for answers that no line of the log names, or that a later line withdrew; return problems, and notes.

    A call that is killed may leave the masks of its last batch, which the next call writes again.
    """
    problems, notes = list[str](), list[str]()
    named, valid = set[str](), set[tuple[str, str]]()
    for line in lines:
        withdrawn = _withdrawn(line)
        valid = {answer for answer in valid if answer[0] not in withdrawn} if withdrawn else valid
        valid |= {(answer["mask"], answer["mask_sha256"]) for answer in _all_answers(line)}
        named |= {answer["mask"] for answer in _all_answers(line)}
    lost = [
        entry.file for entry in state.entries if entry.mask and (entry.mask, entry.mask_sha256) not in valid
    ]
    if lost:
        problems.append(
            f"{len(lost)} answers of the journal are in no line of the log, for example that to {lost[0]}: lines were "
            "removed or changed"
        )
    masks = [mask for mask in state.masks if mask not in named]
    if masks and not lost:
        text = f"{len(masks)} masks are in no line of the log, for example {masks[0]}: "
        if state.sharded or len(masks) <= _unfinished_batch(lines):
            notes.append(
                f"{text}the run did not finish; if it is not running, give the same prediction again"
            )
        else:
            problems.append(f"{text}lines were removed, or these files were added")
    return problems, notes


def changed_masks(folder: Path, lines: Lines) -> dict[str, str]:
    """Return the masks whose content differs from the last answer in the log, and why."""
    last: dict[str, str] = {}
    changed: dict[str, str] = {}
    for line in lines:
        withdrawn = _withdrawn(line) & last.keys()
        changed |= dict.fromkeys(withdrawn, "is there, but was withdrawn")
        for mask in withdrawn:
            del last[mask]
        for answer in _all_answers(line):
            last[answer["mask"]] = answer["mask_sha256"]
        if line.get("event") == "mask" and isinstance(parts := line.get("parts"), list):
            for part in parts:
                last.pop(str(part), None)
    changed = {mask: why for mask, why in changed.items() if mask not in last and _is_file(folder, mask)}
    for mask, digest in last.items():
        if ".." in Path(mask).parts or Path(mask).is_absolute():
            changed[mask] = "is outside the folder"
        elif not _is_file(folder, mask):
            changed[mask] = "is missing"
        elif file_digest(folder / mask) != digest:
            changed[mask] = "was changed after it was written"
    return changed


def _all_answers(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the masks that a line states, of single images or of a stack."""
    if line.get("event") == "answers":
        return answers_of(line)
    if line.get("event") == "mask" and isinstance(line.get("parts"), list):
        return [{"mask": str(line.get("mask")), "mask_sha256": str(line.get("mask_sha256"))}]
    return []


def _withdrawn(line: Mapping[str, Any]) -> set[str]:
    """Return the masks of answers that a line withdraws."""
    masks = line.get("masks") if line.get("event") == "revert" else None
    return {str(mask) for mask in masks} if isinstance(masks, list) else set()


def masks_on_disk(folder: Path) -> list[str]:
    """Return the masks of a folder in the order of their names, without hidden files."""
    return sorted(path.relative_to(folder).as_posix() for path in files_below(folder / "masks"))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files at any depth, without hidden ones and those of file managers."""
    for path in folder.rglob("*"):
        if not path.name.startswith(".") and path.name.lower() not in FILE_MANAGERS and path.is_file():
            yield path


def _unfinished_batch(lines: Lines) -> int:
    """Return the number of images in a batch of the last run if it did not finish, else 0."""
    for line in reversed(lines):
        if line.get("event") == "finished":
            return 0
        if line.get("event") == "run":
            run = line.get("run")
            size = run.get("batch") if isinstance(run, dict) else None
            return size if isinstance(size, int) else 0
    return 0


def _is_file(folder: Path, name: str) -> bool:
    """Unlike `Path.is_file`, this accepts a name that is too long; one that leaves the folder is no file of it."""
    return ".." not in Path(name).parts and not Path(name).is_absolute() and os.path.isfile(folder / name)
