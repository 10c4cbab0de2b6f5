"""The volumes of a stream of slices, and the orders in which slices come."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Literal, get_args

from ttdg.data.readers import read_image
from ttdg.data.sites import Case, Site
from ttdg.data.volumes.files import volume_geometry

Order = Literal["site", "volume", "shuffled-volume"]
"""How images come:

- `site`: all images of the target in one order; a batch may hold slices of several volumes.
- `volume`: volume by volume, the slices of each in their order; a batch holds neighbouring slices of one volume.
- `shuffled-volume`: volume by volume, the slices of each shuffled; a batch holds any slices of one volume.
"""
ORDERS: tuple[Order, ...] = get_args(Order)
Images = Sequence[tuple[Site, Case]]


@dataclass(frozen=True)
class Volume:
    """A volume whose slices are all in a stream."""

    site: str
    name: str
    slices: tuple[str, ...]  # names of the cases, along z
    spacing: tuple[float, float, float] | None  # (z, y, x) of a voxel at the network's size, in millimetres


def volume_of(image: tuple[Site, Case]) -> tuple[str, str]:
    """Return the site and the name of the volume that an image is a slice of."""
    return image[0].name, image[1].volume or image[1].patient


def ordered(images: Images, order: Order, seed: int | None) -> list[tuple[Site, Case]]:
    """Return the images in an order.

    Args:
        images: The images in the order of their files.
        order: How the images come.
        seed: Shuffles the images (`site`), or the volumes; None keeps the order of the files. The slices of
            `shuffled-volume` are shuffled in any case.
    """
    rng, listed = random.Random(seed or 0), list(images)
    if order == "site":
        if seed is not None:
            rng.shuffle(listed)
        return listed
    volumes = _grouped(listed)
    if seed is not None:
        rng.shuffle(volumes)
    if order == "shuffled-volume":
        for volume in volumes:
            rng.shuffle(volume)
    return list(chain.from_iterable(volumes))


def batched(images: Images, size: int, order: Order) -> Iterator[Images]:
    """Yield the images in batches; in the orders by volume, no batch holds slices of two volumes."""
    runs = [list(images)] if order == "site" else [list(run) for _, run in groupby(images, volume_of)]
    for run in runs:
        for start in range(0, len(run), size):
            yield run[start : start + size]


def complete_volumes(images: Images, size: int, *, spacing: bool) -> list[Volume]:
    """Return the volumes whose slices are all among the images. Others cannot be scored as volumes.

    Args:
        images: The images of a stream, in any order.
        size: Side of the network's input, to which slices are scaled.
        spacing: Also find the spacing, which reads one slice of each volume.
    """
    given = {(site.name, case.name) for site, case in images}
    sites = {site.name: site for site, _ in images}
    volumes = []
    for site in sites.values():
        for slices in _grouped([(site, case) for case in site.cases]):
            cases = [case for _, case in slices]
            if all((site.name, case.name) in given for case in cases):
                name = volume_of(slices[0])[1]
                sides = voxel_spacing(cases, size) if spacing else None
                volumes.append(Volume(site.name, name, tuple(case.name for case in cases), sides))
    return volumes


def voxel_spacing(cases: Sequence[Case], size: int) -> tuple[float, float, float] | None:
    """Return (z, y, x) of a voxel in millimetres after scaling to `size`; None unless known and the same everywhere."""
    known = {(case.slice_spacing, case.spacing) for case in cases}
    ((z, pixel),) = known if len(known) == 1 else {(None, None)}
    if z is None or pixel is None:
        return None
    path = cases[0].image
    height, width = read_image(path).shape[:2] if cases[0].slice is None else volume_geometry(path).shape[1:]
    return z, pixel[0] * height / size, pixel[1] * width / size


def _grouped(images: Images) -> list[list[tuple[Site, Case]]]:
    """Return the slices of each volume in the order of the images, volumes in the order of their first slice."""
    volumes: dict[tuple[str, str], list[tuple[Site, Case]]] = {}
    for image in images:
        volumes.setdefault(volume_of(image), []).append(image)
    return list(volumes.values())
