"""Names of the masks and overlays. They mirror the input tree."""

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PACKED = ".nii.gz"  # the only suffix of two parts
WRITTEN = (".png", ".jpg", ".dcm", ".nii", PACKED)  # suffixes of masks and overlays
FRAME = re.compile(r"(.+)/\d{4,}")  # folder and number of the frame of a stack


def output_names(
    files: Sequence[str], taken: Mapping[str, str], stacks: Collection[str] = ()
) -> dict[str, str]:
    """Return the name of each file's mask and overlay, without their suffix, below `masks/` and `overlays/`.

    It is the name of the file without its suffix. Files that would share it keep their suffix in it, and so does a file
    whose output would have the name of a folder. Names that are too long for a file system are shortened and end in a
    hash.

    Args:
        files: Names of the input files and stacks, relative to the input folder.
        taken: File → name, for answers that exist. Their names do not change, and no other file gets them.
        stacks: Those of both that have several frames; the overlays of these are in a folder of that name.
    """
    shared, places = Counter(_folded(_stem(file)) for file in {*files, *taken}), _Places()
    for name in (*files, *taken.values()):
        places.folders |= _folders(name)
    for file in {*files, *taken} - {*stacks}:
        places.add_number(taken.get(file, _stem(file)))
    for file, name in taken.items():
        places.add(name, file in stacks)
    names = dict(taken)
    for file in files:
        if file in names:
            continue
        stem = _shortened(_stem(file))
        choices = [_shortened(file), _shortened(stem, always=True, of=file)]
        if shared[_folded(_stem(file))] == 1:
            choices.insert(0, stem)
        choices.append(_shortened(_stem(file).replace("/", "_"), always=True, of=file))  # in no folder
        stack = file in stacks
        names[file] = next((name for name in choices if places.is_free(name, stack)), choices[-1])
        places.add(names[file], stack)
    return names


@dataclass
class _Places:
    """What outputs are called, in any of the folders of outputs, without letter case.

    The outputs of a name are NAME.png and others; those of the frames of a stack are NAME/0001.jpg and others.
    """

    used: set[str] = field(default_factory=set)  # names
    written: set[str] = field(default_factory=set)  # names with their suffixes
    folders: set[str] = field(default_factory=set)  # above names
    stacks: set[str] = field(default_factory=set)  # names of stacks, which are folders too
    numbered: set[str] = field(default_factory=set)  # folders of images that are called as frames are

    def add(self, name: str, stack: bool) -> None:
        """Note the outputs of a name."""
        self.used.add(_folded(name))
        self.written |= _written(name)
        if stack:
            self.stacks.add(_folded(name))

    def add_number(self, name: str) -> None:
        """Note the folder of an image if its name is a number."""
        if number := FRAME.fullmatch(_folded(name)):
            self.numbered.add(number[1])

    def is_free(self, name: str, stack: bool) -> bool:
        """Return whether outputs of this name are neither those of another, nor folders, nor in a file."""
        folded, written, above = _folded(name), _written(name), _folders(name)
        if folded in self.used or written & (self.folders | self.stacks) or self.written & above:
            return False
        if stack:
            return folded not in self.numbered and folded not in self.written
        number = FRAME.fullmatch(folded)
        return number is None or number[1] not in self.stacks


def _written(name: str) -> set[str]:
    """Return what the outputs of a name may be called."""
    return {_folded(name + suffix) for suffix in WRITTEN}


def _folders(name: str) -> set[str]:
    """Return the folders that a name is in."""
    return {_folded(folder.as_posix()) for folder in PurePosixPath(name).parents} - {"."}


def is_output_name(name: str) -> bool:
    """Return whether a path stays inside the folder that it is relative to, and can be the name of a file."""
    path = Path(name)
    inside = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    return (
        inside and len(os.fsencode(path.name)) <= 240 and all(len(os.fsencode(x)) <= 255 for x in path.parts)
    )


def _stem(file: str) -> str:
    folder, slash, name = file.rpartition("/")
    stem = name[: -len(PACKED)] if name.lower().endswith(PACKED) else Path(name).stem
    return folder + slash + (stem or name)


def _folded(name: str) -> str:
    """Return a text that is equal for names which some file systems do not distinguish."""
    return unicodedata.normalize("NFC", name).casefold()


def _shortened(name: str, always: bool = False, of: str | None = None) -> str:
    """Return the name, with its last part cut to 200 bytes and a hash added if it is longer."""
    folder, slash, last = name.rpartition("/")
    raw = last.encode(errors="surrogateescape")
    if not always and len(raw) <= 200:
        return name
    digest = hashlib.sha256((of or name).encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{folder}{slash}{raw[:180].decode(errors='ignore')}-{digest}"
