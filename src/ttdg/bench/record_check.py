"""Checks of record files: readable, and complete according to their metadata line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.evaluation.records import PRIMARY, read_about, read_rows

REMEDY = "run the same benchmark into this folder again: it makes only damaged and missing records"


def record_fault(path: Path) -> str | None:
    """Return why a record cannot be used, or None if it is complete."""
    try:
        about, dice = read_about(path), [row for row in read_rows(path) if row[4] in PRIMARY]
    except UserError:
        return f"{path.name} cannot be read"
    return count_fault(path.name, about, len(dice), len({row[3] for row in dice}))


def count_fault(name: str, about: Mapping[str, Any], scores: int, regions: int) -> str | None:
    """Return a message if a record lacks images: it must hold a Dice per image and region, or an accuracy per image.

    Args:
        name: Name of the record, for the message.
        about: The metadata line, which declares the number of images.
        scores: Number of Dice or accuracy values in the record.
        regions: Number of regions that have such values.
    """
    declared = about.get("images") if isinstance(about, Mapping) else None
    if type(declared) is not int or declared < 1:
        return f"{name} does not declare its number of images"
    if regions and scores == declared * regions:
        return None
    return (
        f"{name} declares {declared} images but holds {scores} Dice or accuracy values of {regions} regions"
    )
