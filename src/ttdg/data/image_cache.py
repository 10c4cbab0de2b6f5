"""The images of a target in their order, decoded once and kept for the next job of the same process."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ttdg.data.benchmark import Benchmark
from ttdg.data.loading import Arrays, subset, to_batch
from ttdg.data.packing import load_site
from ttdg.data.sites import Case, Site, find_sites, split
from ttdg.types import Batch

SITES_KEPT = 6  # decoded sites that a process keeps
ImageOrder = Sequence[tuple[Site, Case]]

# By folder and fingerprint of the site and by description of the benchmark; least recently used first.
_kept: dict[tuple[Path, str, str], tuple[Arrays, Mapping[str, int]]] = {}


def ordered_images(
    names: Sequence[str], data: Path, *, held_out: bool, shuffle: int | None, limit: int | None
) -> ImageOrder:
    """Return the images of the sites of a target in the order of its stream.

    Args:
        names: The sites to score as one set.
        data: The benchmark folder.
        held_out: Take only the fifth of each site that no model was trained on.
        shuffle: Seed of the order; None keeps the order of the files.
        limit: Number of images to keep; None keeps all.
    """
    images: list[tuple[Site, Case]] = []
    sites = find_sites(data, names)
    for name in names:
        cases = split(sites[name].cases)[1] if held_out else sites[name].cases
        images += [(sites[name], case) for case in cases]
    if shuffle is not None:
        random.Random(shuffle).shuffle(images)
    return images[:limit]


def target_batches(
    images: ImageOrder, benchmark: Benchmark, fingerprints: Mapping[str, str], size: int, device: torch.device
) -> Iterator[Batch]:
    """Yield the images as batches. The fingerprints of the sites keep stale decoded images from being used."""
    sites = {site.name: site for site, _ in images}
    decoded = {name: _decoded(site, benchmark, fingerprints[name]) for name, site in sites.items()}
    for start in range(0, len(images), size):
        part = images[start : start + size]
        rows = [(decoded[site.name][0], decoded[site.name][1][case.name]) for site, case in part]
        pixels = torch.stack([arrays.images[row] for arrays, row in rows])
        masks = torch.stack([arrays.masks[row] for arrays, row in rows if arrays.masks is not None])
        batch = Arrays(pixels, masks, tuple(case.name for _, case in part))
        yield to_batch(batch, benchmark.normalisation, device)


def held_out_images(site: Site, benchmark: Benchmark, fingerprint: str) -> Arrays:
    """Return the fifth of a site that no model was trained on."""
    return subset(_decoded(site, benchmark, fingerprint)[0], split(site.cases)[1])


def _decoded(site: Site, benchmark: Benchmark, fingerprint: str) -> tuple[Arrays, Mapping[str, int]]:
    """Decode a site unless it is kept; return its images and the row of each case."""
    key = (site.cases[0].image.parent, fingerprint, repr(benchmark.to_dict()))
    if key in _kept:
        _kept[key] = _kept.pop(key)  # now the most recently used
    else:
        if len(_kept) == SITES_KEPT:
            del _kept[next(iter(_kept))]
        arrays = load_site(site, benchmark)
        _kept[key] = arrays, {name: number for number, name in enumerate(arrays.cases)}
    return _kept[key]
