"""The frames of DICOM and NIfTI files, found from headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ttdg.data.dicom import DicomImage, NoImageError, group_by_series, read_dicom_header
from ttdg.data.threads import ordered_map
from ttdg.data.unlabelled import InputFile, Stack
from ttdg.data.volumes.nifti import read_geometry
from ttdg.errors import UserError

INDEX = "dicomdir"  # the table of contents of a disc, which holds no image
AHEAD = 256  # headers


@dataclass
class OpenedFiles:
    """What is in some files: frames, or the reason why there are none. Names are relative to the input folder."""

    images: list[InputFile] = field(default_factory=list)
    set_aside: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)


def open_nifti(files: Mapping[str, Path]) -> OpenedFiles:
    """Return the axial slices of NIfTI files, from the feet to the head."""
    opened = OpenedFiles()
    for file, path in sorted(files.items()):
        try:
            stack = Stack(file, path, read_geometry(path).shape[0])
        except UserError as error:
            opened.set_aside[file] = str(error).replace(str(path), file)
        except OSError as error:
            opened.set_aside[file] = f"cannot open {file} ({error.strerror}); check its permissions"
        else:
            opened.images += _frames(file, path, stack)
    return opened


def open_dicom(files: Mapping[str, Path]) -> OpenedFiles:
    """Return the frames of DICOM files. Slices of one series share a stack, and every other file is a stack."""
    opened, images = OpenedFiles(), dict[str, DicomImage]()
    if not files:
        return opened
    for (file, path), future in ordered_map(
        lambda item: read_dicom_header(item[1]), sorted(files.items()), ahead=AHEAD
    ):
        try:
            images[file] = future.result()
        except NoImageError as error:
            kind = opened.ignored if path.name.lower() == INDEX else opened.set_aside
            kind[file] = str(error).replace(str(path), file)
        except UserError as error:
            opened.set_aside[file] = str(error).replace(str(path), file)
        except OSError as error:
            opened.set_aside[file] = f"cannot open {file} ({error.strerror}); check its permissions"
    names = {image.path: file for file, image in images.items()}
    for series in group_by_series(list(images.values())):
        members = tuple((image, frame) for image in series for frame in range(image.frames))
        first = min(names[image.path] for image in series)
        stack = Stack(first, files[first], len(members), members)
        if len(series) == 1 and len(members) > 1:
            opened.images += _frames(first, files[first], stack)
        else:
            opened.images += [
                InputFile(names[image.path], image.path, stack=stack, number=number)
                for number, image in enumerate(series)
            ]
    return opened


def _frames(file: str, path: Path, stack: Stack) -> list[InputFile]:
    """Return the frames of one file. No other file can have such a name, because the file is no folder."""
    return [InputFile(f"{file}/{n + 1:04}", path, file, stack, n) for n in range(stack.depth)]
