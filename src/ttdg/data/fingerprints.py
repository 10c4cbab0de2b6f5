"""Fingerprints of data. They depend neither on the order of the cases nor on the location of the folders."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ttdg.data.sites import Case
from ttdg.data.threads import ordered_map
from ttdg.errors import UserError


def fingerprint(cases: Iterable[Case], quick: bool = False, workers: int | None = None) -> str:
    """Return a hash of the names and files of the cases.

    The full fingerprint hashes the bytes of each file. The `quick` one opens no file: it hashes sizes and
    modification times, and therefore also changes when a file is touched or copied.
    """
    files = sorted(
        (case.name, part, path)
        for case in cases
        for part, path in (("image", case.image), ("mask", case.mask))
        if path is not None
    )
    digest = hashlib.sha256()
    paths = dict.fromkeys(path for _, _, path in files)  # the slices of a volume share a file
    found = ordered_map(lambda path: _identity(path, quick), paths, workers, ahead=256)
    identity = {path: future.result() for path, future in found}
    for name, part, path in files:
        digest.update(f"{name}\0{part}\0{identity[path]}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def table_hash(cases: Iterable[Case]) -> str:
    """Return a hash of what the table of a site says: patients, splits and voxel sizes.

    They decide which cases are held out, which are volumes, and distances in millimetres. No file shows them.
    """
    lines = sorted(repr((c.name, c.patient, c.split, c.spacing, c.slice_spacing)) for c in cases)
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _identity(path: Path, quick: bool) -> str:
    try:
        if path.is_dir():  # a DICOM series
            files = sorted(file for file in path.iterdir() if file.is_file())
            return hashlib.sha256("\n".join(_identity(file, quick) for file in files).encode()).hexdigest()
        if quick:
            stat = path.stat()
            return f"{stat.st_size} {stat.st_mtime_ns}"
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}); restore the file, or remove its case"
        ) from None
