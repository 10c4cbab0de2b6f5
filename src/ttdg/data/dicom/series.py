"""Series: files that are the slices of one volume."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ttdg.data.dicom.header import DicomImage

PARALLEL = 1e-3  # largest difference between the directions of slices of one volume
APART = 1e-3  # millimetres between two slices that are not at the same place


def group_by_series(images: Sequence[DicomImage]) -> list[list[DicomImage]]:
    """Return the images in groups: the slices of a volume sorted along its normal, and every other image alone.

    Slices belong to one volume if they have the same series, frame of reference and size, parallel planes, and
    different positions. Images of a series that does not meet this, such as photographs of both eyes, stay alone.
    """
    series: dict[tuple[object, ...], list[DicomImage]] = defaultdict(list)
    groups: list[list[DicomImage]] = []
    for image in images:
        if image.frames == 1 and image.placed and image.series:
            series[
                image.series, image.study, image.reference, image.rows, image.columns, image.spacing
            ].append(image)
        else:
            groups.append([image])
    for members in series.values():
        ordered = _along_normal(members)
        groups += [ordered] if ordered else [[image] for image in members]
    return groups


def _along_normal(images: Sequence[DicomImage]) -> list[DicomImage]:
    """Return slices sorted from the smallest position along their normal; empty if they are no volume."""
    directions = np.array([image.orientation for image in images])
    places = [position_along_normal(image) for image in images]
    order = np.argsort(places, kind="stable")
    apart = np.diff(np.array(places)[order])
    if np.abs(directions - directions[0]).max() > PARALLEL or (apart < APART).any():
        return []
    return [images[number] for number in order]


def position_along_normal(image: DicomImage, frame: int = 0) -> float:
    """Return where a frame cuts the normal of its plane, in millimetres."""
    row, column = np.array(image.orientation[:3]), np.array(image.orientation[3:])
    return float(np.cross(row, column) @ np.array(image.positions[frame]))
