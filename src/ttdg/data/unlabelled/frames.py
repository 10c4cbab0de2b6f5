"""Image files of a new site, and the stacks of frames that DICOM and NIfTI files hold."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ttdg.data.dicom import DicomImage, frame_picture
from ttdg.data.raster import DECODING
from ttdg.data.volumes.dicom_series import stacked_values
from ttdg.data.volumes.kept import file_key, kept_volume, volume_bytes
from ttdg.data.volumes.nifti import image_slice

DIGESTS = 64  # of files with several frames that are remembered


@dataclass(frozen=True, eq=False)
class Stack:
    """Frames that share one mask file: those of a NIfTI or DICOM file, or the slices of a DICOM series."""

    name: str  # of the file, or of the first file of the series in the order of names; relative to the input folder
    path: Path  # of that file
    depth: int  # number of frames
    dicom: tuple[tuple[DicomImage, int], ...] = ()  # image and number of each frame; empty for NIfTI


@dataclass(frozen=True)
class InputFile:
    """An image of a new site: a file, or a frame of a file."""

    file: str  # name relative to the input folder, with forward slashes; that of a frame ends in its number
    path: Path
    holder: str = ""  # name of the file that holds the frame, if the file holds several
    stack: Stack | None = None
    number: int = 0  # of the frame in its stack

    def without_paths(self, text: str) -> str:
        """Return a text in which files are named relative to the input folder, or without their folder."""
        text = text.replace(str(self.path), self.holder or self.file)
        for path in {image.path for image, _ in self.stack.dicom} if self.stack is not None else ():
            text = text.replace(str(path), path.name)
        return text


def read_stack_frame(
    file: InputFile, stack: Stack, side: int, *, clip: bool
) -> tuple[UInt8[np.ndarray, "h w 3"], tuple[int, int]]:
    """Return a frame in 8-bit RGB, and its full (height, width).

    The range of a NIfTI volume becomes 0…255. A DICOM frame is shown as its file says; a stack of frames without a
    window shares one range. With `clip`, the 5–95 % of the stack become 0…255 in both. A frame with more than four
    squares of `side` is scaled down by an integer, and both its sides stay at least this long.
    """
    with DECODING.hold(stack.dicom[file.number][0].pixels if stack.dicom else 0):
        image = _full_frame(file, stack, clip=clip)
        size = image.shape[0], image.shape[1]
        if size[0] * size[1] > 4 * side * side:
            image = np.asarray(Image.fromarray(image).reduce(max(1, min(size) // side)))
    return image, size


def _full_frame(file: InputFile, stack: Stack, *, clip: bool) -> UInt8[np.ndarray, "h w 3"]:
    if not stack.dicom:
        return image_slice(stack.path, file.number, clip=clip)
    image, frame = stack.dicom[file.number]
    if clip or (stack.depth > 1 and any(member.needs_range for member, _ in stack.dicom)):

        def load() -> UInt8[np.ndarray, "d h w"]:
            return volume_bytes(stacked_values(stack.dicom, stack.path), stack.path, clip=clip)

        grey = kept_volume("clipped" if clip else "whole", stack, load)[file.number]
        return np.stack([grey, grey, grey], axis=-1)
    return frame_picture(image, frame)


class FileDigests:
    """SHA-256 digests of files. Those of files with several frames are remembered."""

    def __init__(self) -> None:
        self._lock, self._known = Lock(), OrderedDict[tuple[Path, int, int], str]()

    def of(self, file: InputFile) -> str:
        """Return the digest of a file in hexadecimal."""
        if not file.holder:
            return _digest_of(file.path)
        key = file_key(file.path)
        with self._lock:
            if key not in self._known:
                self._known[key] = _digest_of(file.path)
                while len(self._known) > DIGESTS:
                    self._known.popitem(last=False)
            return self._known[key]


DIGEST = FileDigests()


def _digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
