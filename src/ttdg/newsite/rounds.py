"""Which files have a final answer, and which the present call answers.

A round is the files that one call answers, or one that was interrupted and those that resumed it. The answers of a
finished round are final: a file that is added later does not change them.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from ttdg.data.unlabelled import DIGEST, InputFile, Refused, Stack
from ttdg.newsite.journal import PARTS, Journal, answer_key


@dataclass
class Rounds:
    """The image files of a call."""

    earlier: list[list[InputFile]] = field(default_factory=list)  # with a final answer, by round
    present: list[InputFile] = field(
        default_factory=list
    )  # to answer, or answered by the call that is resumed
    refused: list[Refused] = field(default_factory=list)  # of earlier rounds, and still not readable

    def groups(self, with_earlier: bool) -> list[list[InputFile]]:
        """Return the files by round and stack, so that no batch has slices of two volumes. The present come last."""
        rounds = [*(self.earlier if with_earlier else ()), self.present]
        return [list(run) for images in rounds for _, run in groupby(images, _volume)]

    def final(self) -> frozenset[str]:
        """Return the names of the files with a final answer."""
        return frozenset(image.file for group in self.earlier for image in group)


def refusal_key(most_pixels: int) -> str:
    """Return the key of the entries of files that are set aside: the reason may depend on the limit of pixels."""
    return answer_key("set aside", str(most_pixels))


def _volume(image: InputFile) -> Stack | None:
    """Return the stack of an image if it has several frames."""
    return image.stack if image.stack is not None and image.stack.depth > 1 else None


def sort_into_rounds(images: Sequence[InputFile], journal: Journal, most_pixels: int) -> Rounds:
    """Sort the files of a call by whether their answer in the journal is final.

    It is final if its round is finished, the file has not changed, and the mask and the overlay exist. A mask that was
    changed by hand is final in every case. The frames of a stack share a mask, so either all or none are final. A file
    that was set aside is read again if it has changed, or if the limit `most_pixels` has.
    """
    rounds, earlier = Rounds(), defaultdict[int, list[InputFile]](list)
    for _, members in groupby(images, lambda image: image.stack or image):
        frames = list(members)
        states = [_state(image, journal, refusal_key(most_pixels)) for image in frames]
        refused = [state for state in states if isinstance(state, Refused)]
        numbers = {state for state in states if not isinstance(state, Refused)}
        rounds.refused += refused
        answered = [
            image for image, state in zip(frames, states, strict=True) if not isinstance(state, Refused)
        ]
        if len(numbers) == 1 and (number := numbers.pop()):
            earlier[number] += answered
        else:
            rounds.present += answered
            _drop_shared_mask(answered, journal)
    rounds.earlier = [earlier[number] for number in sorted(earlier)]
    return rounds


def _state(image: InputFile, journal: Journal, refusal: str) -> int | Refused:
    """Return the round of a final answer, 0 for an image to answer, or why it is still refused."""
    entry = journal.entries.get(image.file)
    if entry is None or not 0 < entry.round <= journal.finished:
        return 0
    try:
        same = DIGEST.of(image) == entry.input_sha256
    except OSError as error:
        reason = f"cannot open {image.holder or image.file} ({error.strerror}); check its permissions"
        return Refused(image.file, "", reason)
    if entry.status == "set aside":
        return Refused(image.file, entry.input_sha256, entry.reason) if same and entry.key == refusal else 0
    return entry.round if image.file in journal.edited or (same and image.file in journal.kept) else 0


def _drop_shared_mask(frames: Sequence[InputFile], journal: Journal) -> None:
    """Forget the answers to frames of a stack whose complete mask does not hold all frames as they are now."""
    stack = frames[0].stack if frames else None
    if stack is None:
        return
    entries = {image.file: journal.entries.get(image.file) for image in frames}
    masks = {entry.mask if entry is not None else "" for entry in entries.values()}
    if len(masks) > 1 or not all(_is_kept(image, journal) for image in frames):
        for file, entry in entries.items():
            if entry is not None and not entry.mask.startswith(f"{PARTS}/"):
                journal.kept.pop(file, None)


def _is_kept(image: InputFile, journal: Journal) -> bool:
    """Return whether the file of an answer has not changed, and its outputs exist."""
    with suppress(OSError):
        return image.file in journal.kept and DIGEST.of(image) == journal.entries[image.file].input_sha256
    return False
