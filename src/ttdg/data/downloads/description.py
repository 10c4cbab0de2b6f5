"""Descriptions of data sets: which files of a download are images and masks, and what the masks mean.

Files are found by regular expressions over their path below the download folder, with `/` between folders; letter case
does not matter. An expression may begin at any folder. Its named groups are:

- `case`: the name of the case, and of its files in the benchmark folder;
- `patient`, `split`, `site`, `class`: values of the case, where the path gives them.

A mask belongs to the image with the same values of all groups of the mask's expression. The path of a DICOM series
is that of its folder, with `/` at the end.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ttdg.errors import UserError, suggestion

Channel = Literal["red", "green", "blue"]
Split = Literal["train", "test"]
RATER = "{rater}"  # stands for the chosen rater's expression
GROUPS = {"case", "patient", "split", "site", "class"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MaskSpec(_Strict):
    """One of the mask files of a case. Masks are painted over each other in the order of the description.

    Attributes:
        file: Expression for the path.
        paint: The label to paint where the value is greater than `above`; or the label of each value.
        above: Threshold, if `paint` is one label.
        channels: Colour channels of which the largest value counts; None is a grey mask.
        several: `last` takes the last of several matching files by name. Otherwise several are a problem.
    """

    file: str
    paint: str | dict[int, str]
    above: int | None = None
    channels: tuple[Channel, ...] | None = None
    several: Literal["last"] | None = None

    @model_validator(mode="after")
    def _complete(self) -> "MaskSpec":
        if isinstance(self.paint, str) != (self.above is not None):
            raise ValueError("`above` belongs to a single label in `paint`")
        return self


class PartSpec(_Strict):
    """Some of the images of a data set.

    Attributes:
        image: Expression for the path.
        masks: The masks of an image; none for class folders.
        site: Name of the site, with groups in braces.
        name: Name of the case in the benchmark folder, with groups in braces.
        sites: Site of each value of the group `site`; without it, the value in lower case.
        splits: Split of each value of the group `split`, in lower case; others are left open.
        classes: Class of each value of the group `class`; without it, the value in lower case.
    """

    image: str
    masks: tuple[MaskSpec, ...] = ()
    site: str = "{site}"
    name: str = "{case}"
    sites: Mapping[str, str] = Field(default_factory=dict)
    splits: Mapping[str, Split] = Field(default_factory=dict)
    classes: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _expressions_agree(self) -> "PartSpec":
        image = set(expression(self.image).groupindex)
        for file in (self.image, *(mask.file for mask in self.masks)):
            groups = set(expression(file).groupindex)
            if "case" not in groups or groups - GROUPS or groups - image:
                raise ValueError(f"{file} must have the group `case`, and a mask only groups of its image")
        return self


class TableSpec(_Strict):
    """A csv file of the download with the patient of each case."""

    file: str
    case: str  # name of a column
    patient: str  # name of a column


class DatasetDescription(_Strict):
    """All entries of a description.

    Attributes:
        title: Name in tables.
        home: Where the data set comes from.
        terms: What its owners allow, as far as it is known.
        layout: What the download looks like, in words.
        unverified: What about the layout could not be verified; empty if it was seen.
        benchmark: The built-in benchmark whose labels the masks get; None for class folders.
        raters: Expression of each rater, for the mark `{rater}` in mask files; the first is the default.
        crop: `left half` keeps the left half of each image, of stereo pairs.
        tolerance: A mask whose sides differ from its image's by at most this share is scaled to it.
        table: A table of patients in the download.
        ignore: Expression for paths that are left out, such as images whose masks are secret.
        parts: The images. A case of an earlier part hides the same case of a later one.
    """

    title: str
    home: str
    terms: str
    layout: str
    unverified: str = ""
    benchmark: str | None = None
    raters: Mapping[str, str] = Field(default_factory=dict)
    crop: Literal["left half"] | None = None
    tolerance: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    table: TableSpec | None = None
    ignore: str = ""
    parts: Annotated[tuple[PartSpec, ...], Field(min_length=1)]

    @property
    def digest(self) -> str:
        """A hash of what decides the written files."""
        texts = {"title", "home", "terms", "layout", "unverified"}
        return hashlib.sha256(self.model_dump_json(exclude=texts).encode()).hexdigest()[:16]

    def chosen_rater(self, rater: str | None) -> str | None:
        """Return the name of the rater: the given one, the first, or None without raters."""
        if rater is None:
            return next(iter(self.raters), None)
        if rater not in self.raters:
            raise UserError(f"{self.title} has no rater {rater!r}{suggestion(rater, self.raters)}")
        return rater


@cache
def expression(text: str, rater: str = "") -> re.Pattern[str]:
    """Return the compiled expression, which may begin at any folder of a path."""
    return re.compile(f"(?:.*/)?(?:{text.replace(RATER, rater)})", re.IGNORECASE)


def importable() -> tuple[str, ...]:
    """Return the names of the data sets that can be imported, sorted."""
    files = resources.files("ttdg.data.downloads").joinpath("datasets").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def dataset_description(name: str) -> DatasetDescription:
    """Return the description of a data set."""
    if name not in importable():
        raise UserError(f"unknown data set {name!r}{suggestion(name, importable())}")
    file = resources.files("ttdg.data.downloads").joinpath("datasets", f"{name}.yaml")
    return DatasetDescription.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
