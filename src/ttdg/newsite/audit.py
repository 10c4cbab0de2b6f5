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
        """Append a line about the mask of a stack, before the parts that it was made from are deleted."""
        self.add("mask", mask=entry.mask, mask_sha256=entry.mask_sha256, parts=list(parts))


def line_hash(line: Mapping[str, Any]) -> str:
    """Return the hash of a line without its own hash; it covers the hash of the line before."""
    content = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class AuditReport:
    """Result of `verify_audit`."""

    lines: list[dict[str, Any]]
    problems: list[str]  # sentences; none if the log is whole
    masks: dict[str, str] = field(default_factory=dict)  # masks that are not those of the log → why

    def answers(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every answer with the number of its line, in order."""
        for line in self.lines:
            if line.get("event") == "answers":
                yield from ((line["number"], answer) for answer in _answers(line))

    def counts(self) -> dict[str, int]:
        """Return the numbers of answers, of rolled-back answers, and of undone updates."""
        answers = [answer for _, answer in self.answers()]
        return {
            "answers": len(answers),
            "rolled back": sum(bool(answer.get("rolled_back")) for answer in answers),
            "updates undone": sum(bool(line.get("update_undone")) for line in self.lines),
        }


def verify_audit(folder: Path) -> AuditReport:
    """Check the chain of a folder's audit log, its end as the manifest states it, and the masks that it names."""
    path = folder / FILE
    if not path.is_file():
        raise UserError(f"{folder} has no audit log; name an output folder of a prediction")
    lines, problems = read_chain(path)
    problems += _compare_with_manifest(folder, lines)
    return AuditReport(lines, problems, _changed_masks(folder, lines))


def read_chain(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines of a log, and the problems of its chain as sentences."""
    lines, problems, previous = list[dict[str, Any]](), list[str](), START
    data = path.read_bytes()
    for number, raw in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(raw)
            intact = (line["number"], line["hash"]) == (number, line_hash(line))
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


def _compare_with_manifest(folder: Path, lines: list[dict[str, Any]]) -> list[str]:
    with suppress(OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        stated = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["audit"]
        count = int(stated["lines"])
        if len(lines) < count:
            return [
                f"the manifest states {count} lines, but {len(lines)} are there: lines were removed at the end"
            ]
        if count and lines[count - 1]["hash"] != stated["head"]:
            return [f"line {count} does not have the hash that the manifest states"]
    return []


def _answers(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of a line, without those that lack a name or a hash: the line was changed."""
    files, names = line.get("files"), ("file", "mask", "mask_sha256")
    return [
        answer
        for answer in (files if isinstance(files, list) else ())
        if isinstance(answer, dict) and all(isinstance(answer.get(name), str) for name in names)
    ]


def _changed_masks(folder: Path, lines: list[dict[str, Any]]) -> dict[str, str]:
    """Return the masks whose content differs from the last answer in the log."""
    last: dict[str, str] = {}
    for line in lines:
        if line.get("event") == "answers":
            last |= {answer["mask"]: answer["mask_sha256"] for answer in _answers(line)}
        elif line.get("event") == "mask" and isinstance(parts := line.get("parts"), list):
            last[str(line.get("mask"))] = str(line.get("mask_sha256"))
            for part in parts:
                last.pop(str(part), None)
        elif line.get("event") == "revert" and isinstance(masks := line.get("masks"), list):
            for mask in masks:
                last.pop(str(mask), None)
    changed = {}
    for mask, digest in last.items():
        path = folder / mask
        if ".." in Path(mask).parts or Path(mask).is_absolute():
            changed[mask] = "is outside the folder"
        elif not os.path.isfile(path):  # unlike `Path.is_file`, it accepts a name that is too long
            changed[mask] = "is missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            changed[mask] = "was changed after it was written"
    return changed
