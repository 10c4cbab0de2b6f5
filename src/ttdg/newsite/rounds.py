"""Which files have a final answer, and which the present call answers.

A round is the files that one call answers, or one that was interrupted and those that resumed it. The answers of a
finished round are final: a file that is added later does not change them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ttdg.data.unlabelled import InputFile, Refused
from ttdg.newsite.journal import Journal


@dataclass
class Rounds:
    """The image files of a call."""

    earlier: list[list[InputFile]] = field(default_factory=list)  # with a final answer, by round
    present: list[InputFile] = field(
        default_factory=list
    )  # to answer, or answered by the call that is resumed
    refused: list[Refused] = field(default_factory=list)  # of earlier rounds, and still not readable

    def groups(self, with_earlier: bool) -> list[list[InputFile]]:
        """Return the files by round; the present round is the last."""
        return [*(self.earlier if with_earlier else ()), self.present]

    def final(self) -> frozenset[str]:
        """Return the names of the files with a final answer."""
        return frozenset(image.file for group in self.earlier for image in group)


def sort_into_rounds(images: Sequence[InputFile], journal: Journal) -> Rounds:
    """Sort the files of a call by whether their answer in the journal is final.

    It is final if its round is finished, the file has not changed, and the mask and the overlay exist. A mask that was
    changed by hand is final in every case.
    """
    rounds, earlier = Rounds(), defaultdict[int, list[InputFile]](list)
    for image in images:
        entry = journal.entries.get(image.file)
        if entry is None or not 0 < entry.round <= journal.finished:
            rounds.present.append(image)
            continue
        try:
            with image.path.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == entry.input_sha256
        except OSError as error:
            reason = f"cannot open {image.file} ({error.strerror}); check its permissions"
            rounds.refused.append(Refused(image.file, "", reason))
            continue
        if entry.status == "set aside" and same:
            rounds.refused.append(Refused(image.file, entry.input_sha256, entry.reason))
        elif image.file in journal.edited or (same and image.file in journal.kept):
            earlier[entry.round].append(image)
        else:
            rounds.present.append(image)
    rounds.earlier = [earlier[number] for number in sorted(earlier)]
    return rounds
