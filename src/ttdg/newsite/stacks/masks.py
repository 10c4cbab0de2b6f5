"""The mask of a stack of frames, written when all its frames were answered, from parts that were kept until then."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from ttdg.data import Benchmark
from ttdg.data.unlabelled import InputFile, Stack
from ttdg.data.volumes.nifti import SUFFIXES
from ttdg.data.volumes.nifti_writing import write_mask
from ttdg.files import atomic_file
from ttdg.newsite.audit import AuditLog
from ttdg.newsite.journal import PARTS, REPLACED, Journal, JournalEntry
from ttdg.newsite.stacks.segmentation_object import Maker, write_segmentation


@dataclass(frozen=True)
class StackMasks:
    """Writes the masks of stacks below an output folder."""

    out: Path
    benchmark: Benchmark  # its labels, and their values in a NIfTI mask
    maker: Maker

    def finish(self, stack: Stack, name: str, entries: Mapping[int, JournalEntry]) -> list[JournalEntry]:
        """Write the mask of a stack and return the entries of its frames, which now name that mask.

        Args:
            stack: The stack.
            name: Name of the mask without its suffix.
            entries: Number of a frame in the stack → its entry, for frames that were answered.
        """
        numbers = sorted(entries)
        if all(not entries[number].mask.startswith(f"{PARTS}/") for number in numbers):
            return []
        parts = [self.out / entries[number].mask for number in numbers]
        with Image.open(parts[0]) as first:
            indices = np.empty((len(parts), first.height, first.width), np.uint8)
        for number, part in enumerate(parts):
            with Image.open(part) as picture:
                indices[number] = np.asarray(picture)
        mask = f"masks/{name}{mask_suffix(stack)}"
        with atomic_file(self.out / mask) as temporary:
            if stack.dicom:
                write_segmentation(
                    temporary,
                    [stack.dicom[number] for number in numbers],
                    indices,
                    self.benchmark.labels,
                    self.maker,
                )
            else:
                greys = self.benchmark.greys
                for axial in indices:  # in place and one by one, because an index takes eight bytes
                    axial[:] = greys[axial]
                write_mask(temporary, stack.path, indices)
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [replace(entries[number], mask=mask, mask_sha256=digest) for number in numbers]

    def remove_parts(self, name: str) -> None:
        """Delete the parts of a mask that is complete and in the journal, and folders that are then empty."""
        folder = self.out / PARTS / name
        for path in folder.glob("*.png"):
            path.unlink()
        while folder != self.out and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def mask_suffix(stack: Stack) -> str:
    """Return the suffix of the mask of a stack: that of a NIfTI input, or `.dcm`."""
    name = stack.path.name.lower()
    return ".dcm" if stack.dicom else next(suffix for suffix in SUFFIXES if name.endswith(suffix))


class OpenStacks:
    """The stacks of a run with the number of frames that are still to be answered.

    Args:
        images: All images of the run.
        final: Files whose answers are not changed.
        journal: The answers.
        audit: The log of the run.
        masks: Writes the masks.
        names: Name of the mask of each stack.
        set_aside: Called with file, hash and reason of an answered frame that cannot be used.
    """

    def __init__(
        self, images: Iterable[InputFile], final: Collection[str], journal: Journal, audit: AuditLog, masks: StackMasks,
        names: Mapping[str, str], set_aside: Callable[[str, str, str], None],
    ) -> None:  # fmt: skip
        self.journal, self.audit, self.masks = journal, audit, masks
        self.names, self.set_aside = names, set_aside
        self._stack = {image.file: image.stack for image in images}
        self._members: dict[Stack, list[InputFile]] = {}
        for image in images:
            if image.stack is not None:
                self._members.setdefault(image.stack, []).append(image)
        self._waiting = {
            stack: sum(image.file not in final for image in members)
            for stack, members in self._members.items()
        }
        self._earlier = dict[str, list[JournalEntry]]()  # mask → its answers by earlier calls
        for entry in journal.entries.values():
            self._earlier.setdefault(entry.mask, []).append(entry)
        self._superseded = {stack: self._outputs(stack) for stack in self._members if self._waiting[stack]}

    def count_down(self, *files: str) -> None:
        """Note that images were answered or refused, and write the masks of stacks that are now complete."""
        for file in files:
            stack = self._stack[file]
            if stack is None:
                continue
            self._waiting[stack] -= 1
            if self._waiting[stack] == 0:
                self._finish(stack)

    def _outputs(self, stack: Stack) -> set[str]:
        return {path for image in self._members[stack] for path in self.journal.outputs(image.file)}

    def _finish(self, stack: Stack) -> None:
        """Write the mask of a stack from the answers to its frames."""
        entries = {image.number: self.journal.entries.get(image.file) for image in self._members[stack]}
        answered = {number: entry for number, entry in entries.items() if entry and entry.status == "done"}
        if not stack.dicom and len(answered) < stack.depth:  # a NIfTI file that changed during the run
            for entry in answered.values():
                self.set_aside(entry.file, entry.input_sha256, f"{stack.name} misses slices; copy it again")
        elif answered and not self.journal.edited & {entry.file for entry in answered.values()}:
            name = self.names[stack.name]
            if finished := self.masks.finish(stack, name, answered):
                superseded = self._superseded[stack] - {
                    finished[0].mask
                }  # of fewer slices, under other names
                masks = {path for path in superseded if path.startswith("masks/")}
                self.audit.add_stack(finished[0], sorted(masks | {entry.mask for entry in answered.values()}))
                self.journal.add(*finished, *self._absent(stack, finished[0].mask))
                self.masks.remove_parts(name)
                for path in superseded - self._outputs(stack):
                    (self.masks.out / path).unlink(missing_ok=True)

    def _absent(self, stack: Stack, mask: str) -> list[JournalEntry]:
        """Return the answers in a mask that was replaced to frames which the stack no longer has.

        Their status says so; with the hash of the earlier mask they would make the new one look changed by hand.
        """
        present = {image.file for image in self._members[stack]}
        earlier = self._earlier.get(mask, [])
        return [replace(entry, status=REPLACED) for entry in earlier if entry.file not in present]
