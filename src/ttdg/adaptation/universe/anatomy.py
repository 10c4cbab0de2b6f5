"""Kinds of anatomy, measured on the labels of the source: structures are steady, varied, sometimes absent or thin.

The method `universe` presumes a kind of anatomy:

- Labels carried through one universe presume that all images show the same structures in similar sizes. Where sizes
  vary, and where some images show no structure, they put structures where there are none.
- Where an image may show no structure, an empty answer may be right. Where every image shows one, it is wrong.
- Learning from a network's own labels presumes that most pixels of a structure are sure. Where structures are hardly
  more than boundary, most are not, and learning did not gain over the judge (docs/howto/thin-structures.md).

`ttdg.adaptation.universe.treatment` says what follows for each kind. The structures of an image are all pixels that
are not background.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

Anatomy = Literal["steady", "varied", "absent", "thin"]

VARIED = 0.5  # standard deviation of the areas, divided by their mean, above which sizes vary
ABSENT = 0.05  # share of images without any structure above which structures are sometimes absent
THIN = 0.5  # share of boundary pixels above which structures are thin
CHUNK = 64  # images that are measured together


def anatomy_of(masks: Iterable[UInt8[Tensor, "_n h w"]]) -> Anatomy:
    """The kind of anatomy in the labels of several sites."""
    measured = measure_anatomy(masks)
    if measured.boundary > THIN:
        return "thin"
    if measured.empty > ABSENT:
        return "absent"
    return "varied" if measured.spread > VARIED else "steady"


class Measured(NamedTuple):
    """The numbers from which the kind is told, over all images of several sites."""

    spread: float  # standard deviation of the area of the structures in an image, divided by its mean
    boundary: float  # share of their pixels that have a background pixel among their eight neighbours
    empty: float  # share of images without any structure; 0 if no image shows one


def measure_anatomy(masks: Iterable[UInt8[Tensor, "_n h w"]]) -> Measured:
    """Measure the labels of several sites. Masks hold label indices; 0 is the background."""
    measured = [_areas(part) for site in masks for part in site.split(CHUNK)]
    areas, boundaries = (torch.cat(values) for values in zip(*measured, strict=True))
    mean = areas.mean().clamp(min=1e-12)
    return Measured(
        float(areas.std(correction=0) / mean),
        float(boundaries.mean() / mean),
        float((areas == 0).float().mean()) if bool(areas.any()) else 0.0,
    )


def _areas(masks: UInt8[Tensor, "n h w"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Area of the structures of each image, and area of their boundary, as shares of the image."""
    structure = (masks > 0).float()[:, None]
    boundary = structure * F.max_pool2d(1 - structure, 3, stride=1, padding=1)
    return structure.mean((1, 2, 3)), boundary.mean((1, 2, 3))
