"""What a call of `predict` did, and the sentences that name the files of one kind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttdg.newsite.journal import JournalEntry
from ttdg.safety import Drift

NAMED = 3  # files that a sentence names
NOT_LEARNED = (
    "No image of this folder was learned: each one is empty, noise or of another kind than the images of the source, "
    "and was answered alone by the source model."
)


@dataclass(frozen=True)
class FolderResult:
    """Result of `predict`."""

    done: int  # files segmented in this call
    kept: int  # files whose masks from an earlier call are still valid
    set_aside: Mapping[str, str]  # file that is not segmented → reason
    manifest: Path
    expected_dice: Mapping[str, float]  # file → expected Dice of its mask, if the method predicts it
    method: str  # the method that was used
    choice: str  # why `auto` chose it; empty if it was named
    stream: str  # the stream that was used
    images: int  # images with an answer; a frame of a volume is an image
    remarks: Mapping[str, int]  # what the method says about its treatment of the site → number of images
    unusual: Mapping[str, str]  # files that are not this kind of image → why; they were answered alone
    edited: tuple[str, ...]  # files whose mask was changed after it was written, and is kept
    removed: tuple[str, ...]  # files with a mask that are no longer among the inputs
    unnamed: tuple[str, ...]  # masks that no row of the manifest names
    report: Path  # `report.html`
    drift: Drift | None  # distance from the source sites; None without a fingerprint or without images
    without_maps: int  # kept files without the probability maps that this call asked for
    outputs: tuple[str, ...]  # folders that earlier predictions wrote; they are not read


def count_unlearned(answers: Iterable[JournalEntry]) -> dict[str, int]:
    """Return what must be said if no image could be learned, with the number of images; else nothing."""
    unusual = [bool(answer.unusual) for answer in answers if answer.status == "done"]
    return {NOT_LEARNED: len(unusual)} if unusual and all(unusual) else {}


def by_reason(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the files of each reason."""
    found: dict[str, list[str]] = {}
    for file, reason in files.items():
        found.setdefault(reason, []).append(file)
    return found


def name_some(files: Sequence[str], most: int = NAMED) -> str:
    """Return the names of a few files, and the number of the others. Instead of one other file, its name is given."""
    if len(files) <= most + 1:
        return ", ".join(files)
    return f"{', '.join(files[:most])} and {len(files) - most} others"
