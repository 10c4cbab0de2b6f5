"""The audit log of an output folder: an append-only chain of hashes over every decision.

Each line of `audit.jsonl` holds the hash of the line before it and its own, so that a changed, inserted or removed line
breaks the chain. The manifest holds the last hash and the number of lines, so that lines removed at the end are found.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.newsite.audit_checks import (
    answer_problems,
    answers_of,
    changed_masks,
    manifest_problems,
    read_state,
)
from ttdg.newsite.journal import JournalEntry

START = "0" * 64  # hash before the first line
FILE = "audit.jsonl"


class AuditLog:
    """The log of an output folder. A line that was cut off when a call was killed is removed by `open`.

    Attributes:
        count: Number of lines.
        head: Hash of the last line.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.count, self.head = folder / FILE, 0, START

    def open(self) -> None:
        """Continue the log that exists; a broken chain is continued too, and `verify` keeps reporting it."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        lines = whole.splitlines()
        self.count = len(lines)
        if lines:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                self.head = str(json.loads(lines[-1])["hash"])

    def add(self, event: str, **facts: Any) -> None:
        """Append a line and flush it to disk."""
        self._append({"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **facts})

    def adopt(self, lines: Iterable[Mapping[str, Any]], since: int) -> None:
        """Append the lines of other logs with their times, as links of this chain.

        A fact that this log states after line `since`, or that an interrupted call wrote twice, is not added again.
        """
        stated = {_fact(line) for line in read_chain(self.path)[0][since:]}
        new = {_fact(line): line for line in lines}
        self._append(*(line for fact, line in new.items() if fact not in stated))

    def _append(self, *contents: Mapping[str, Any]) -> None:
        """Append lines to the chain and flush them to disk."""
        text, chain = "", {"number", "previous", "hash"}
        for content in contents:
            line: dict[str, Any] = {"number": self.count + 1}
            line |= {name: value for name, value in content.items() if name not in chain}
            line["previous"] = self.head
            line["hash"] = line_hash(line)
            text += json.dumps(line) + "\n"
            self.count, self.head = self.count + 1, line["hash"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> dict[str, Any]:
        """Return the number of lines and the hash of the last one, which the manifest states."""
        return {"lines": self.count, "head": self.head}

    def add_answers(self, entries: Sequence[JournalEntry], weights: str, update_undone: str) -> None:
        """Append a line about the answers to one batch, before the journal states them."""
        files = [
            {
                "file": entry.file, "input_sha256": entry.input_sha256, "mask": entry.mask,
                "mask_sha256": entry.mask_sha256, "rolled_back": entry.gate if entry.gate != "accepted" else "",
            }
            for entry in entries
        ]  # fmt: skip
        if files:
            self.add("answers", files=files, weights=weights, update_undone=update_undone)

    def add_stack(self, entry: JournalEntry, parts: Sequence[str]) -> None:
        """Append a line about the mask of a stack, before its parts and the masks that it replaces are deleted."""
        self.add("mask", mask=entry.mask, mask_sha256=entry.mask_sha256, parts=list(parts))


def line_hash(line: Mapping[str, Any]) -> str:
    """Return the hash of a line without its own hash; it covers the hash of the line before."""
    content = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class AuditReport:
    """Result of `verify_audit`."""

    lines: list[dict[str, Any]]
    problems: list[str]  # sentences; none if the log is whole and fits the folder
    masks: dict[str, str] = field(default_factory=dict)  # masks that are not those of the log → why
    notes: list[str] = field(default_factory=list)  # what could not be checked, or is left of a killed call

    def answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every answer with the number of its line, in order."""
        for line in self.lines:
            if line.get("event") == "answers":
                yield from ((line["number"], answer) for answer in answers_of(line))

    def counts(self) -> dict[str, int]:
        """Return the numbers of answers, of rolled-back answers, and of undone updates."""
        answers = [answer for _, answer in self.answers()]
        return {
            "answers": len(answers),
            "rolled back": sum(bool(answer.get("rolled_back")) for answer in answers),
            "updates undone": sum(bool(line.get("update_undone")) for line in self.lines),
        }


def verify_audit(folder: Path) -> AuditReport:
    """Check the audit log of a folder, and whether the folder is the one that the log describes.

    Problems are: a chain that is broken, an end other than the manifest states, a changed `manifest.csv`, and answers
    of the journal or masks that no line names. Masks that were changed are listed apart, because a person may correct
    them.
    """
    check_has_log(folder)
    state = read_state(folder)  # first, because a running call writes to the log first
    lines, broken = read_chain(folder / FILE)
    wrong_manifest, notes = manifest_problems(state, lines)
    wrong_answers, more_notes = answer_problems(state, lines)
    problems = [*broken, *wrong_manifest, *wrong_answers]
    return AuditReport(lines, problems, changed_masks(folder, lines), [*notes, *more_notes])


def check_has_log(folder: Path) -> None:
    """Raise a `UserError` if a folder has no audit log."""
    if not (folder / FILE).is_file():
        raise UserError(f"{folder} has no audit log; name an output folder of a prediction")


def read_chain(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines of a log, and the problems of its chain as sentences."""
    lines, problems, previous = list[dict[str, Any]](), list[str](), START
    data = path.read_bytes()
    for number, raw in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(raw)
            same = raw == json.dumps(line).encode()  # a name that is there twice is read once
            intact = same and (line["number"], line["hash"]) == (number, line_hash(line))
            chained, previous = line["previous"] == previous, line["hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(data.splitlines()) and not data.endswith(b"\n"):
                continue  # a call was killed while it wrote this line
            problems.append(f"line {number} cannot be read")
            continue
        if not intact:
            problems.append(f"line {number} was changed")
        elif not chained:
            problems.append(
                f"line {number} does not continue line {number - 1}: a line is missing or was changed"
            )
        lines.append(line)
    return lines, problems


def _fact(line: Mapping[str, Any]) -> str:
    """Return what a line states, without its time and its place in the chain."""
    place = {"number", "time", "previous", "hash"}
    return json.dumps({name: value for name, value in line.items() if name not in place}, sort_keys=True)
