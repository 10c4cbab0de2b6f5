"""The review queue of a site: its answers, read from the journal, with the decisions of users."""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ttdg.adaptation.judge.candidates import describe_candidate
from ttdg.adaptation.judge.method import FALLBACK
from ttdg.adaptation.universe.site_judge import CANDIDATES, UNADAPTED
from ttdg.data.volumes.nifti import SUFFIXES as NIFTI
from ttdg.newsite.journal import JournalEntry, read_journal
from ttdg.page.contours import image_key
from ttdg.safety.review import review_priority

VERDICTS = ("accepted", "flagged", "corrected", "undecided")


@dataclass(frozen=True)
class QueueRow:
    """One image of the queue."""

    key: str  # identifier of the image
    number: int  # position in the journal
    risk: float  # between 0 and 1; the queue is sorted by it
    verdict: str
    entry: JournalEntry

    @property
    def done(self) -> bool:
        """Whether the image has a mask."""
        return self.entry.status == "done"

    @property
    def choice(self) -> str:
        """What the judge chose, in words, and why; empty without a judge."""
        entry = self.entry
        if not entry.reading or entry.expected_dice is None:
            return ""
        known, words = entry.expected_unadapted, describe_candidate(entry.reading)
        words = "" if words == entry.reading else f"{words}. "
        if known is None:
            return words
        if entry.reading == FALLBACK:
            return f"{words}No other answer was expected to be clearly better than {known:.2f}."
        if entry.reading == CANDIDATES[UNADAPTED]:
            return f"The adapted answer was not expected to be better than {known:.2f}."
        why = f"{words}Expected Dice {entry.expected_dice:.2f}, against {known:.2f} for the unadapted answer."
        return (
            f"{why[:-1]}; the site as a whole is expected to gain." if entry.expected_dice <= known else why
        )

    @property
    def why_fixed(self) -> str:
        """Why the brush cannot correct the mask; empty for a PNG file."""
        if not self.entry.stack:
            return ""
        kind = "a NIfTI file" if self.entry.stack.lower().endswith(NIFTI) else "a DICOM segmentation"
        return f"The brush corrects PNG masks only. This mask is in {kind}: export it, and correct it in a viewer."


def queue_rows(folder: Path) -> tuple[QueueRow, ...]:
    """Return the answers of a site in the order of the journal; nothing is read again that did not change."""
    return _rows(folder, file_stamp(folder / "out" / "journal.jsonl"), file_stamp(folder / "review.jsonl"))


def by_risk(rows: tuple[QueueRow, ...]) -> list[QueueRow]:
    """Return rows in the order in which a person should look at them."""
    return sorted(rows, key=lambda row: (-row.risk, row.entry.file))


def find_row(folder: Path, key: str) -> QueueRow | None:
    """Return the row of an image, or None."""
    return next((row for row in queue_rows(folder) if row.key == key), None)


def risk_of(entry: JournalEntry) -> float:
    """Return the risk of an answer, by which `review.csv` is sorted too; 1 for a file without a mask."""
    if entry.status != "done":
        return 1.0
    return review_priority(
        entry.expected_dice, entry.expected_low, entry.expected_high, entry.confidence, bool(entry.unusual)
    )


def read_verdicts(path: Path) -> dict[str, str]:
    """Return the latest decision about each image."""
    verdicts: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError, KeyError):
            decision = json.loads(line)
            verdicts[decision["file"]] = decision["verdict"]
    return verdicts


@lru_cache(maxsize=64)
def _rows(folder: Path, journal: tuple[int, int, int], review: tuple[int, int, int]) -> tuple[QueueRow, ...]:
    verdicts = read_verdicts(folder / "review.jsonl")
    entries = read_journal(folder / "out" / "journal.jsonl").entries.values()
    return tuple(
        QueueRow(image_key(entry.file), number, risk_of(entry), verdicts.get(entry.file, "undecided"), entry)
        for number, entry in enumerate(entries)
    )


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Return values that change with a file; zeros if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
