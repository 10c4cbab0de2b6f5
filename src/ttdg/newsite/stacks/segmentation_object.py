"""Masks as DICOM segmentations (SEG), written with highdicom.

A segmentation refers to its images by their UIDs and, for files with several frames, by the numbers of the frames. It
has the study and, where images have one, the place in the patient. Patient name and number, birth date, sex, dates,
accession number and physician are left empty unless the identity is asked for.

highdicom accepts images of few kinds: a photograph of a fundus camera is a file of several frames to it, which must
then have a place in the patient. It therefore gets plain stand-ins with the geometry of the images. Afterwards the
references to stand-ins are replaced by those to the images.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ttdg.data.dicom import DicomImage, read_identity, silence

STAND_IN_CLASS = "1.2.840.10008.5.1.4.1.1.7"  # secondary capture
CATEGORY = ("123037004", "SCT", "Anatomical structure")
PRIVATE_SCHEME = "99TTDG"  # codes of labels that are named by a benchmark
UNPLACED = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
STACK_POSITION, FRAME_CONTENT = 0x00209057, 0x00209111  # InStackPositionNumber, FrameContentSequence


@dataclass(frozen=True)
class Maker:
    """What made a mask, as its segmentation says."""

    method: str
    model: str  # hash of the weights
    version: str  # of ttdg
    keep_identity: bool = False  # copy patient and study from the images


def write_segmentation(
    path: Path,
    frames: Sequence[tuple[DicomImage, int]],
    indices: UInt8[np.ndarray, "d h w"],
    labels: Sequence[str],
    maker: Maker,
) -> None:
    """Write the labels of frames of one file or series as a binary segmentation with a segment for each label.

    The same arguments give the same file on the same day.

    Args:
        path: The file to write.
        frames: The images and the numbers of their frames, all of one size, study and series.
        indices: The labels of each frame; 0 is the background.
        labels: The name of each label, the background first.
        maker: What made the mask.
    """
    silence()
    import highdicom

    placed = all(image.placed for image, _ in frames)
    uid = _uid(
        maker.model, maker.method, *(f"{image.sop_instance} {frame}" for image, frame in frames), indices
    )
    sources = [
        _stand_in(image, frame, number, placed, len(frames) > 1, uid)
        for number, (image, frame) in enumerate(frames)
    ]
    made = highdicom.seg.Segmentation(
        source_images=sources,
        pixel_array=indices if len(frames) > 1 or placed else indices[0],
        segmentation_type="BINARY",
        segment_descriptions=_segments(labels, maker),
        series_instance_uid=_uid(frames[0][0].series, maker.model, maker.method),
        series_number=1,
        sop_instance_uid=uid,
        instance_number=1,
        manufacturer="ttdg",
        manufacturer_model_name=f"ttdg {maker.method}"[:64],
        software_versions=maker.version,
        device_serial_number=maker.model[:64] or "none",
        omit_empty_frames=False,
        content_label="TTDG",
    )
    _refer(made, {source.SOPInstanceUID: frame for source, frame in zip(sources, frames, strict=True)})
    if not placed and len(frames) > 1:
        _forget_place(made)
    _settle(made, uid)
    if maker.keep_identity:
        made.update(read_identity(frames[0][0].path))
    made.save_as(path)


def _stand_in(image: DicomImage, frame: int, number: int, placed: bool, several: bool, uid: str) -> Any:
    """Return an image with one frame for highdicom. It holds no identifying tag."""
    from pydicom import Dataset
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    source = Dataset()
    source.file_meta = FileMetaDataset()
    source.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    source.SOPClassUID, source.SOPInstanceUID = STAND_IN_CLASS, _uid(uid, "stand-in", str(number))
    source.StudyInstanceUID = image.study or _uid(image.series or image.sop_instance, "study")
    source.SeriesInstanceUID = image.series or _uid(image.sop_instance, "series")
    source.Modality, source.Rows, source.Columns = image.modality, image.rows, image.columns
    source.LossyImageCompression = "01" if image.lossy else "00"
    for name in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID",
                 "StudyDate", "StudyTime", "ReferringPhysicianName"):  # fmt: skip
        setattr(source, name, "")
    if placed or several:
        source.FrameOfReferenceUID = image.reference if placed else _uid(uid, "reference")
        source.ImageOrientationPatient = list(image.orientation if placed else UNPLACED)
        source.ImagePositionPatient = list(image.positions[frame]) if placed else [0.0, 0.0, float(number)]
        source.PixelSpacing = list(image.spacing or (1.0, 1.0)) if placed else [1.0, 1.0]
        source.SliceThickness = (image.thickness if placed else None) or 1.0
    return source


def _segments(labels: Sequence[str], maker: Maker) -> list[Any]:
    from highdicom import AlgorithmIdentificationSequence
    from highdicom.seg import SegmentDescription
    from highdicom.sr import CodedConcept
    from pydicom.sr.codedict import codes

    algorithm = AlgorithmIdentificationSequence(
        f"ttdg {maker.method}"[:64], codes.DCM.ArtificialIntelligence, maker.version
    )
    return [
        SegmentDescription(
            number,
            label[:64],
            CodedConcept(*CATEGORY),
            CodedConcept(f"LABEL{number}", PRIVATE_SCHEME, label[:64]),
            "AUTOMATIC",
            algorithm,
        )
        for number, label in enumerate(labels[1:], 1)
    ]


def _refer(made: Any, frames: dict[str, tuple[DicomImage, int]]) -> None:
    """Replace the references to stand-ins, of each frame and of the whole object."""
    from copy import deepcopy

    from pydicom import Dataset

    for item in made.PerFrameFunctionalGroupsSequence:
        for derivation in item.DerivationImageSequence:
            for source in derivation.SourceImageSequence:
                if source.ReferencedSOPInstanceUID not in frames:
                    continue  # highdicom shares the item between the segments of a frame
                image, frame = frames[source.ReferencedSOPInstanceUID]
                source.ReferencedSOPClassUID, source.ReferencedSOPInstanceUID = (
                    image.sop_class,
                    image.sop_instance,
                )
                if image.frames > 1:
                    source.ReferencedFrameNumber = frame + 1
    instances = {}
    for image, _ in frames.values():
        reference = Dataset()
        reference.ReferencedSOPClassUID, reference.ReferencedSOPInstanceUID = (
            image.sop_class,
            image.sop_instance,
        )
        instances[image.sop_instance] = reference
    made.ReferencedSeriesSequence[0].ReferencedInstanceSequence = list(instances.values())
    made.SourceImageSequence = deepcopy(list(instances.values()))


def _forget_place(made: Any) -> None:
    """Remove the place that stand-ins have and their images do not; frames are told apart by their number."""
    for name in ("FrameOfReferenceUID", "PositionReferenceIndicator", "DimensionOrganizationType"):
        if name in made:
            delattr(made, name)
    for item in (*made.SharedFunctionalGroupsSequence, *made.PerFrameFunctionalGroupsSequence):
        for name in ("PlaneOrientationSequence", "PlanePositionSequence", "PixelMeasuresSequence"):
            if name in item:
                delattr(item, name)
    for item in made.PerFrameFunctionalGroupsSequence:
        content = item.FrameContentSequence[0]
        content.StackID, content.InStackPositionNumber = "1", int(content.DimensionIndexValues[-1])
    index = made.DimensionIndexSequence[-1]
    index.DimensionIndexPointer, index.FunctionalGroupPointer = STACK_POSITION, FRAME_CONTENT
    index.DimensionDescriptionLabel = "In-Stack Position Number"


def _settle(made: Any, uid: str) -> None:
    """Replace random UIDs and the time of day, so that the same answer is the same file."""
    organisation, today = _uid(uid, "dimensions"), datetime.now(UTC).strftime("%Y%m%d")
    made.DimensionOrganizationSequence[0].DimensionOrganizationUID = organisation
    for index in made.DimensionIndexSequence:
        index.DimensionOrganizationUID = organisation
    made.ContentDate, made.ContentTime = today, "000000"
    for equipment in made.get("ContributingEquipmentSequence", ()):
        equipment.pop("ContributionDateTime", None)
    for name in ("InstanceCreationDate", "InstanceCreationTime", "SeriesDate", "SeriesTime"):
        if name in made:
            delattr(made, name)


def _uid(*parts: str | np.ndarray) -> str:
    """Return a UID that depends on the arguments alone."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0" if isinstance(part, str) else part.tobytes())
    return f"2.25.{int.from_bytes(digest.digest()[:16], 'big')}"
