"""Headers of DICOM images.

Only the tags listed here are read. None of them identifies a patient, so that no name can reach a message or a file.
Messages never quote an error of pydicom, because such an error may quote a tag.
"""

import io
import logging
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ttdg.errors import UserError

MAGIC, MAGIC_AT = b"DICM", 128  # bytes
SUFFIXES = (".dcm", ".dicom", ".ima")
LEAST_FRAME = 8  # bytes that a frame takes in a file
DEFLATED = "1.2.840.10008.1.2.1.99"
DIRECTORY = "1.2.840.10008.1.3.10"  # DICOMDIR
NO_IMAGES = {
    "1.2.840.10008.5.1.4.1.1.66.4": "a segmentation",
    "1.2.840.10008.5.1.4.1.1.66.7": "a segmentation",
    "1.2.840.10008.5.1.4.1.1.481.2": "a dose distribution",
}
TAGS = (
    "SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "Modality", "Rows",
    "Columns", "NumberOfFrames", "SamplesPerPixel", "BitsAllocated", "BitsStored", "PhotometricInterpretation",
    "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "WindowCenter", "WindowWidth",
    "VOILUTSequence", "LossyImageCompression", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
IDENTITY = (
    "SpecificCharacterSet", "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime",
    "AccessionNumber", "StudyID", "ReferringPhysicianName",
)  # fmt: skip


class NoImageError(UserError):
    """A DICOM file that is whole but holds no image."""


@dataclass(frozen=True)
class DicomImage:
    """What is known of an image file without decoding it."""

    path: Path
    sop_class: str  # UIDs
    sop_instance: str
    study: str
    series: str
    reference: str  # frame of reference; empty if there is none
    modality: str
    rows: int
    columns: int
    frames: int
    bits: int  # stored for each value
    orientation: tuple[float, ...]  # direction of a row and of a column in the patient; empty if unknown
    positions: tuple[
        tuple[float, ...], ...
    ]  # of the first pixel of each frame, in millimetres; empty if unknown
    spacing: tuple[float, float] | None  # (y, x) in millimetres
    thickness: float | None  # of a slice, in millimetres
    lossy: bool
    needs_range: bool  # grey of more than 8 bits, without a window that says what black and white are

    @property
    def pixels(self) -> int:
        """The number of pixels of a frame."""
        return self.rows * self.columns

    @property
    def placed(self) -> bool:
        """True if the place of each frame in the patient is known."""
        return bool(self.reference and self.orientation and self.positions and self.spacing)


class ClampedFile(io.BufferedReader):
    """A file that never reads beyond its end, because a read of a claimed length would first allocate it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._end = path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes."""
        rest = max(0, self._end - self.tell())
        return super().read(rest if size is None or size < 0 else min(size, rest))


def is_signed(start: bytes) -> bool:
    """Return True if the first 132 bytes of a file end in the signature of DICOM."""
    return start[MAGIC_AT : MAGIC_AT + 4] == MAGIC


def has_dicom_suffix(path: Path) -> bool:
    """Return True for a file with a suffix of DICOM files, which may lack the signature."""
    return path.suffix.lower() in SUFFIXES


def read_dicom_header(path: Path) -> DicomImage:
    """Return the header of an image file; raise `NoImageError` for a whole file that holds no image."""
    silence()
    from pydicom.errors import InvalidDicomError

    try:
        tags = _read_tags(path)
        return _image(path, tags)
    except (UserError, FileNotFoundError, PermissionError):
        raise
    except InvalidDicomError:
        raise UserError(f"{path} is no DICOM file that can be read; copy or export it again") from None
    except Exception:  # noqa: BLE001  pydicom converts values late and raises anything for a damaged file
        raise UserError(f"{path} has a damaged DICOM header; copy or export it again") from None


@cache
def silence() -> None:
    """Keep pydicom from printing values of tags."""
    from pydicom import config

    config.settings.reading_validation_mode = config.IGNORE
    for library in ("pydicom", "highdicom", "pylibjpeg", "libjpeg", "openjpeg"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"pydicom|highdicom|pylibjpeg|libjpeg|openjpeg")


def frame_group(tags: Any, frame: int, name: str) -> Any:
    """Return the item of a functional group for a frame of an enhanced image; other images hold it at their root."""
    for sequence, number in (
        ("PerFrameFunctionalGroupsSequence", frame),
        ("SharedFunctionalGroupsSequence", 0),
    ):
        groups = tags.get(sequence) or ()
        if number < len(groups) and (items := groups[number].get(name)):
            return items[0]
    return tags


def has_window(tags: Any) -> bool:
    """Return True if the file says which values are black and white."""
    place = frame_group(tags, 0, "FrameVOILUTSequence")
    return bool(place.get("VOILUTSequence")) or (
        place.get("WindowCenter") is not None and place.get("WindowWidth") is not None
    )


def _read_tags(path: Path) -> Any:
    from pydicom import dcmread
    from pydicom.filereader import read_file_meta_info

    with ClampedFile(path) as file:
        file.seek(MAGIC_AT)
        signed = file.read(4) == MAGIC
        if signed and str(read_file_meta_info(path).get("TransferSyntaxUID", "")) == DEFLATED:
            raise UserError(
                f"{path} is a deflated DICOM file, whose size in memory cannot be bounded; convert it to another "
                "transfer syntax"
            )
        file.seek(0)
        return dcmread(file, stop_before_pixels=True, force=not signed, specific_tags=list(TAGS))


def _image(path: Path, tags: Any) -> DicomImage:
    kind = str(tags.get("SOPClassUID") or tags.file_meta.get("MediaStorageSOPClassUID") or "")
    if kind in NO_IMAGES or not all(tags.get(name) for name in ("Rows", "Columns", "BitsAllocated")):
        if not kind:
            raise UserError(f"{path} is no DICOM file that can be read; copy or export it again")
        what = "an index of other files" if kind == DIRECTORY else NO_IMAGES.get(kind, "no image")
        raise NoImageError(f"{path} is a DICOM file that holds {what}; remove it")
    if not tags.get("SOPInstanceUID"):
        raise UserError(f"{path} has no UID, so that its mask could not refer to it; export it again")
    frames = int(tags.get("NumberOfFrames") or 1)
    sides = int(tags.Rows), int(tags.Columns)
    if frames < 1 or frames > 1 + path.stat().st_size // LEAST_FRAME:
        raise UserError(f"{path} claims to hold {frames} frames, which it cannot; copy or export it again")
    measures = frame_group(tags, 0, "PixelMeasuresSequence")
    orientation = _numbers(frame_group(tags, 0, "PlaneOrientationSequence").get("ImageOrientationPatient"), 6)
    positions = _positions(tags, frames)
    spacing, thickness = (
        _numbers(measures.get("PixelSpacing"), 2),
        _numbers(measures.get("SliceThickness"), 1),
    )
    grey = (
        int(tags.get("SamplesPerPixel") or 1) == 1
        and tags.get("PhotometricInterpretation") != "PALETTE COLOR"
    )
    bits = int(tags.get("BitsStored") or tags.BitsAllocated)
    return DicomImage(
        path=path,
        sop_class=kind,
        sop_instance=str(tags.SOPInstanceUID),
        study=str(tags.get("StudyInstanceUID") or ""),
        series=str(tags.get("SeriesInstanceUID") or ""),
        reference=str(tags.get("FrameOfReferenceUID") or ""),
        modality=str(tags.get("Modality") or "OT"),
        rows=sides[0],
        columns=sides[1],
        frames=frames,
        bits=bits,
        orientation=orientation,
        positions=positions,
        spacing=(spacing[0], spacing[1]) if spacing and min(spacing) > 0 else None,
        thickness=thickness[0] if thickness and thickness[0] > 0 else None,
        lossy=tags.get("LossyImageCompression") == "01",
        needs_range=grey and bits > 8 and not has_window(tags),
    )


def _positions(tags: Any, frames: int) -> tuple[tuple[float, ...], ...]:
    """Return the position of each frame; empty unless all are known and differ."""
    if frames > 1 and not tags.get("PerFrameFunctionalGroupsSequence"):
        return ()
    found = [
        _numbers(frame_group(tags, frame, "PlanePositionSequence").get("ImagePositionPatient"), 3)
        for frame in range(frames)
    ]
    return tuple(found) if all(found) and len(set(found)) == frames else ()


def _numbers(value: Any, count: int) -> tuple[float, ...]:
    """Return `count` finite numbers, or an empty tuple."""
    if value is None or value == "":
        return ()
    values = tuple(float(number) for number in (value if hasattr(value, "__len__") else [value]))
    return values if len(values) == count and np.isfinite(values).all() else ()


def read_identity(path: Path) -> Any:
    """Return the tags that say whose image this is, for outputs that are asked to keep them."""
    silence()
    from pydicom import dcmread

    with ClampedFile(path) as file:
        return dcmread(file, stop_before_pixels=True, force=True, specific_tags=list(IDENTITY))
