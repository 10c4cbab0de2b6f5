"""The images of a target in their order, decoded once and kept for the next job of the same process."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from ttdg.data import Arrays, Benchmark, Case, Site, find_sites, load_site, split, to_batch
from ttdg.evaluation.protocols import Target
from ttdg.types import Batch

SITES_KEPT = 6  # decoded sites that a process keeps
ImageOrder = Sequence[tuple[Site, Case]]


def ordered_images(
    target: Target, data: Path, *, held_out: bool, shuffle: int | None, limit: int | None
) -> ImageOrder:
    """Return the images of a target in the order of its stream.

    Args:
        target: The sites to score as one set.
        data: The benchmark folder.
        held_out: Take only the fifth of each site that no model was trained on.
        shuffle: Seed of the order; None keeps the order of the files.
        limit: Number of images to keep; None keeps all.
    """
    images: list[tuple[Site, Case]] = []
    sites = find_sites(data, target.sites)
    for name in target.sites:
        cases = split(sites[name].cases)[1] if held_out else sites[name].cases
        images += [(sites[name], case) for case in cases]
    if shuffle is not None:
        random.Random(shuffle).shuffle(images)
    return images[:limit]


def target_batches(
    images: ImageOrder, benchmark: Benchmark, fingerprints: Mapping[str, str], size: int, device: torch.device
) -> Iterator[Batch]:
    """Yield the images as batches. The fingerprints of the sites keep stale decoded images from being used."""
    key = BenchmarkKey(benchmark)
    sites = {site.name: site for site, _ in images}
    decoded = {name: _decoded(_SiteKey(site, fingerprints[name]), key) for name, site in sites.items()}
    for start in range(0, len(images), size):
        part = images[start : start + size]
        rows = [(decoded[site.name][0], decoded[site.name][1][case.name]) for site, case in part]
        pixels = torch.stack([arrays.images[row] for arrays, row in rows])
        masks = torch.stack([arrays.masks[row] for arrays, row in rows if arrays.masks is not None])
        batch = Arrays(pixels, masks, tuple(case.name for _, case in part))
        yield to_batch(batch, benchmark.normalisation, device)


def held_out_images(site: Site, benchmark: Benchmark, fingerprint: str) -> Arrays:
    """Return the fifth of a site that no model was trained on."""
    arrays, row = _decoded(_SiteKey(site, fingerprint), BenchmarkKey(benchmark))
    cases = split(site.cases)[1]
    rows = [row[case.name] for case in cases]
    masks = None if arrays.masks is None else arrays.masks[rows]
    return Arrays(arrays.images[rows], masks, tuple(case.name for case in cases))


class _SiteKey:
    """A site as a cache key: its folder and fingerprint instead of its thousand cases."""

    def __init__(self, site: Site, fingerprint: str) -> None:
        self.site, self.key = site, (site.cases[0].image.parent, fingerprint)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SiteKey) and self.key == other.key


class BenchmarkKey:
    """A benchmark as a cache key: equal descriptions are equal keys."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark, self.key = benchmark, repr(benchmark.to_dict())

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BenchmarkKey) and self.key == other.key


@lru_cache(SITES_KEPT)
def _decoded(site: _SiteKey, benchmark: BenchmarkKey) -> tuple[Arrays, Mapping[str, int]]:
    """Decode a site; return its images and the row of each case."""
    arrays = load_site(site.site, benchmark.benchmark)
    return arrays, {name: number for number, name in enumerate(arrays.cases)}
