"""Names of the masks and overlays. They mirror the input tree."""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKED = ".nii.gz"  # the only suffix of two parts


def output_names(files: Sequence[str], taken: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each file's mask and overlay, without their suffix, below `masks/` and `overlays/`.

    It is the name of the file without its suffix. Files that would share it keep their suffix in it. Names that are too
    long for a file system are shortened and end in a hash.

    Args:
        files: Names of the input files and stacks, relative to the input folder.
        taken: File → name, for answers that exist. Their names do not change, and no other file gets them.
    """
    shared = Counter(_folded(_stem(file)) for file in {*files, *taken})
    used = {_folded(name) for name in taken.values()}
    names = dict(taken)
    for file in files:
        if file in names:
            continue
        name = _stem(file)
        if shared[_folded(name)] > 1 or _folded(name) in used:
            name = file
        name = _shortened(name)
        if _folded(name) in used:
            name = _shortened(name, always=True, of=file)
        used.add(_folded(name))
        names[file] = name
    return names


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
