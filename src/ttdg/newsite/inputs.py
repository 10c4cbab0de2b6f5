"""Finding the files of a new site: every file below the inputs, as an image or with the reason why not."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ttdg.data.dicom import has_dicom_suffix, is_signed
from ttdg.data.unlabelled import InputFile
from ttdg.data.volumes.nifti import is_volume
from ttdg.errors import UserError
from ttdg.newsite.lock import LOCK
from ttdg.newsite.stacks.frames import open_dicom, open_nifti

KINDS = "PNG, JPEG, BMP, TIFF (8 or 16 bit, float), WebP, DICOM and NIfTI"
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
# First bytes of images, for files with another suffix or none.
STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM")
KNOWN_OTHERS = {
    ".mha": "MetaImage", ".nrrd": "NRRD",
    ".gif": "GIF", ".heic": "HEIC", ".jp2": "JPEG 2000", ".svs": "whole-slide", ".pdf": "PDF", ".zip": "ZIP",
}  # fmt: skip
FILE_MANAGERS = ("thumbs.db", "desktop.ini", ".ds_store")

PIXELS = 89_000_000  # largest image that is read by default


@dataclass(frozen=True)
class FoundFiles:
    """Every file below the inputs. Names are relative to the input folder, with forward slashes."""

    images: tuple[InputFile, ...]  # sorted by name; the frames of a stack follow each other
    set_aside: Mapping[str, str]  # name → why the file is not segmented
    ignored: Mapping[str, str]  # what file managers and earlier predictions left, name → reason
    outputs: tuple[str, ...]  # folders among them that earlier predictions wrote


@dataclass
class _Search:
    out: Path
    images: dict[str, Path] = field(default_factory=dict)
    dicom: dict[str, Path] = field(default_factory=dict)
    nifti: dict[str, Path] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    folders: set[tuple[int, int]] = field(default_factory=set)  # device and inode of those that were searched

    def has_read(self, folder: Path) -> bool:
        """Return True if a folder was searched."""
        status = folder.stat()
        return (status.st_dev, status.st_ino) in self.folders

    def add_folder(self, folder: Path, prefix: str) -> None:
        """Search a folder and those below it, without outputs of predictions.

        Links are followed, and no folder is searched twice.
        """
        waiting = [(folder, prefix)]
        while waiting:
            folder, prefix = waiting.pop()
            name = prefix.rstrip("/") or "."
            try:
                status = folder.stat()
                if (status.st_dev, status.st_ino) in self.folders:
                    self.set_aside[name] = (
                        f"{name} is a link to a folder that is searched anyway; remove the link"
                    )
                    continue
                self.folders.add((status.st_dev, status.st_ino))
                with os.scandir(folder) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                self.set_aside[name] = (
                    f"cannot open the folder {name} ({error.strerror}); check its permissions"
                )
                continue
            for entry in found:
                path, file = Path(entry.path), prefix + entry.name
                if not entry.is_dir():
                    self.add_file(path, file)
                elif entry.name.startswith("."):
                    self.set_aside[file] = f"{file} is a hidden folder; rename it if it holds images"
                elif path.resolve() == self.out:
                    continue
                elif is_output(path):
                    self.outputs.append(file)
                    self.ignored[file] = f"{file} is the output of an earlier prediction"
                else:
                    waiting.append((path, f"{file}/"))

    def add_file(self, path: Path, file: str) -> None:
        """Sort one file into images, files set aside and files ignored."""
        name = path.name.lower()
        if name in FILE_MANAGERS or name.startswith("._"):
            self.ignored[file] = f"{file} was left by a file manager"
        elif name == LOCK:
            self.ignored[file] = f"{file} is the lock of an output folder"
        elif reason := _why_closed(path, file):
            self.set_aside[file] = reason
        elif file in self.images or file in self.dicom or file in self.nifti:
            raise UserError(f"two inputs hold a file {file}; name the folder above both as the only input")
        elif path.suffix.lower() in SUFFIXES:
            self.images[file] = path
        elif is_volume(path):
            self.nifti[file] = path
        else:
            self._add_by_content(path, file)

    def _add_by_content(self, path: Path, file: str) -> None:
        try:
            with path.open("rb") as opened:
                start = opened.read(132)
        except OSError as error:
            self.set_aside[file] = f"cannot open {file} ({error.strerror}); check its permissions"
            return
        raster = start.startswith(STARTS) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")
        if is_signed(start) or (not raster and has_dicom_suffix(path)):
            self.dicom[file] = path
        elif raster:
            self.images[file] = path
        else:
            kind = _kind(path.name.lower())
            self.set_aside[file] = f"{file} is {kind}, and only {KINDS} are read; convert it, or remove it"


def find_files(inputs: Sequence[Path], out: Path) -> FoundFiles:
    """Return every file of the inputs at any depth, without those in the output folder.

    Names are relative to the folder if it is the only input. Otherwise they begin with the name of the input. A file is
    read once, also if it is in several inputs. Folders that an earlier prediction wrote are ignored.

    Args:
        inputs: Files or folders.
        out: The output folder; it may be inside an input.
    """
    search = _Search(out.resolve())
    inputs = _without_repetitions(inputs)
    for path in inputs:
        if path.is_dir():
            if path.resolve() == search.out:
                raise UserError("the output folder is the input folder; choose another output folder")
            if is_output(path):
                raise UserError(f"{path} is the output of an earlier prediction; name a folder of images")
            if not search.has_read(path):
                search.add_folder(path, "" if len(inputs) == 1 else f"{path.resolve().name}/")
        elif not (path.exists() or path.is_symlink()):
            raise UserError(f"there is no file or folder {path}; name images, or a folder that holds images")
        elif not search.has_read(path.parent):
            search.add_file(path, path.name)
    images = [InputFile(file, path) for file, path in search.images.items()]
    for opened in (open_nifti(search.nifti), open_dicom(search.dicom)):
        images += opened.images
        search.set_aside |= opened.set_aside
        search.ignored |= opened.ignored
    if not images and not search.set_aside:
        apart = " apart from the output of earlier predictions" if search.outputs else ""
        raise UserError(f"{', '.join(map(str, inputs))} holds no image{apart}; the kinds {KINDS} are read")
    images.sort(key=lambda image: (image.stack.name if image.stack else image.file, image.number))
    return FoundFiles(tuple(images), search.set_aside, search.ignored, tuple(search.outputs))


def _without_repetitions(inputs: Sequence[Path]) -> list[Path]:
    """Return each input once, folders before those that they hold, and then files. A link to a file is another file."""
    found: dict[Path, Path] = {}
    for path in inputs:
        whole = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
        found.setdefault(whole, path)
    return [found[whole] for whole in sorted(found, key=lambda path: (not path.is_dir(), len(path.parts)))]


def is_output(folder: Path) -> bool:
    """Return True if a folder is what `predict`, finished or not, or a site of the page wrote."""
    written = (("journal.jsonl",), ("manifest.json", "audit.jsonl"), ("site.json", "out/journal.jsonl"))
    return any(all(os.path.isfile(folder / name) for name in names) for names in written)


def is_image_name(name: str) -> bool:
    """Return True if the suffix of a file is that of an image, a DICOM file or a NIfTI file."""
    return name.lower().endswith(SUFFIXES) or is_volume(Path(name)) or has_dicom_suffix(Path(name))


def _why_closed(path: Path, file: str) -> str:
    """Return why a file is not opened, or an empty text for all others."""
    if path.is_symlink() and not path.exists():
        return f"{file} is a link to a file that does not exist; restore the file, or remove the link"
    if not path.is_file():
        return f"{file} is no regular file; remove it"
    if path.name.startswith("."):
        return f"{file} is a hidden file; rename it if it is an image"
    return ""


def _kind(name: str) -> str:
    for suffix, kind in KNOWN_OTHERS.items():
        if name.endswith(suffix):
            return f"a {kind} file"
    return "no image of a known kind"
