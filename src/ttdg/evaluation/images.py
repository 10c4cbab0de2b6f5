"""A target's images in their stream's order, decoded once and kept for the next job of the same process."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from ttdg.bench.jobs import Scoring
from ttdg.data import Arrays, Benchmark, Case, Site, find_sites, load_site, split, to_batch
from ttdg.evaluation.protocols import Target
from ttdg.types import Batch

SITES_KEPT = 6  # decoded sites a process keeps
ImageOrder = Sequence[tuple[Site, Case]]


def ordered_images(target: Target, data: Path, job: Scoring) -> ImageOrder:
    """A function of the job alone: the held-out fifth or all, shuffled by the seed, cut to the limit."""
    found = []
    sites = find_sites(data, target.sites)
    for name in target.sites:
        cases = split(sites[name].cases)[1] if job.cases == "held-out" else sites[name].cases
        found += [(sites[name], case) for case in cases]
    if job.shuffle:
        random.Random(job.seed).shuffle(found)
    return found[: job.limit]


def target_batches(
    cases: ImageOrder, benchmark: Benchmark, prints: Mapping[str, str], size: int, device: torch.device
) -> Iterator[Batch]:
    """`prints` are the sites' fingerprints: what was kept of other data is not used."""
    same = BenchmarkKey(benchmark)
    sites = {site.name: site for site, _ in cases}
    shelves = {name: _decoded(_Named(site, prints[name]), same) for name, site in sites.items()}
    for start in range(0, len(cases), size):
        part = cases[start : start + size]
        places = [(shelves[site.name][0], shelves[site.name][1][case.name]) for site, case in part]
        images = torch.stack([arrays.images[row] for arrays, row in places])
        masks = torch.stack([arrays.masks[row] for arrays, row in places if arrays.masks is not None])
        arrays = Arrays(images, masks, tuple(case.name for _, case in part))
        yield to_batch(arrays, benchmark.normalisation, device)


def held_out_images(site: Site, benchmark: Benchmark, fingerprint: str) -> Arrays:
    """The fifth that no model of this site was trained on."""
    arrays, row = _decoded(_Named(site, fingerprint), BenchmarkKey(benchmark))
    cases = split(site.cases)[1]
    rows = [row[case.name] for case in cases]
    masks = None if arrays.masks is None else arrays.masks[rows]
    return Arrays(arrays.images[rows], masks, tuple(case.name for case in cases))


class _Named:
    """A site as a key: by its folder and fingerprint, not by its thousand cases."""

    def __init__(self, site: Site, fingerprint: str) -> None:
        self.site, self.key = site, (site.cases[0].image.parent, fingerprint)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and self.key == other.key


class BenchmarkKey:
    """A benchmark as a key: two that say the same are the same."""

    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark, self.key = benchmark, repr(benchmark.to_dict())

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BenchmarkKey) and self.key == other.key


@lru_cache(SITES_KEPT)
def _decoded(site: _Named, benchmark: BenchmarkKey) -> tuple[Arrays, Mapping[str, int]]:
    arrays = load_site(site.site, benchmark.benchmark)
    return arrays, {name: number for number, name in enumerate(arrays.cases)}
