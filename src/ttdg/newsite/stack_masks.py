"""The mask of a stack of frames, written when all its frames were answered, from parts that were kept until then."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from ttdg.data import Benchmark
from ttdg.data.unlabelled import Stack
from ttdg.data.volumes.nifti import SUFFIXES, write_mask
from ttdg.files import atomic_file
from ttdg.newsite.journal import PARTS, JournalEntry
from ttdg.newsite.segmentation_object import Maker, write_segmentation


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
