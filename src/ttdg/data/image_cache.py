"""The images of a target in their order, decoded once and kept for the next job of the same process."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.data.benchmark import Benchmark
from ttdg.data.loading import Arrays, subset, to_batch
from ttdg.data.packing import load_site
from ttdg.data.sites import Case, Site, find_sites, split
from ttdg.data.volumes.grouping import Order, batched, ordered
from ttdg.types import Batch

SITES_KEPT = 6  # decoded sites that a process keeps
THUMBNAIL = 32  # rows and columns of the thumbnails that are compared
TWIN = 0.9  # correlation above which two images show the same scene
ImageOrder = Sequence[tuple[Site, Case]]

# By folder and fingerprint of the site and by description of the benchmark; least recently used first.
_kept: dict[tuple[Path, str, str], tuple[Arrays, Mapping[str, int]]] = {}


def ordered_images(
    names: Sequence[str],
    data: Path,
    *,
    held_out: bool,
    shuffle: int | None,
    limit: int | None,
    order: Order = "site",
) -> ImageOrder:
    """Return the images of the sites of a target in the order of its stream.

    Args:
        names: The sites to score as one set.
        data: The benchmark folder.
        held_out: Take only the fifth of each site that no model was trained on.
        shuffle: Seed of the order; None keeps the order of the files.
        limit: Number of images to keep; None keeps all.
        order: Whether the images come volume by volume.
    """
    images: list[tuple[Site, Case]] = []
    sites = find_sites(data, names)
    for name in names:
        cases = split(sites[name].cases)[1] if held_out else sites[name].cases
        images += [(sites[name], case) for case in cases]
    return ordered(images, order, shuffle)[:limit]


def learning_images(
    images: ImageOrder, rule: str, benchmark: Benchmark, fingerprints: Mapping[str, str]
) -> ImageOrder:
    """Return the images of a stream from which a site is learned, in the order of the stream.

    Args:
        images: The images of the stream.
        rule: `all`; `one-per-patient`, the first image of each patient; or `one-per-scene`, the images that are no near
            twin of one that was chosen before. The rules differ where a site's table does not name the patients.
        benchmark: How the images are decoded.
        fingerprints: The fingerprints of the sites.
    """
    if rule == "one-per-patient":
        first: dict[tuple[str, str], tuple[Site, Case]] = {}
        for site, case in images:
            first.setdefault((site.name, case.patient), (site, case))
        return list(first.values())
    if rule == "one-per-scene":
        decoded = {site.name: _decoded(site, benchmark, fingerprints[site.name]) for site, _ in images}
        pixels = [decoded[site.name][0].images[decoded[site.name][1][case.name]] for site, case in images]
        return [images[row] for row in different_scenes(torch.stack(pixels))]
    return images


def different_scenes(images: UInt8[Tensor, "n c h w"]) -> list[int]:
    """Return the rows of images that are no near twin of an earlier one among them.

    Two images are near twins if their thumbnails correlate by more than `TWIN`; each colour has mean 0.
    """
    thumbnails = torch.cat([F.adaptive_avg_pool2d(part.float(), THUMBNAIL) for part in images.split(64)])
    vectors = F.normalize((thumbnails - thumbnails.mean((2, 3), keepdim=True)).flatten(1), dim=1)
    twins = vectors @ vectors.T > TWIN
    chosen = torch.zeros(len(images), dtype=torch.bool)
    for row in range(len(images)):
        chosen[row] = not (twins[row] & chosen).any()
    return chosen.nonzero()[:, 0].tolist()


def target_batches(
    images: ImageOrder,
    benchmark: Benchmark,
    fingerprints: Mapping[str, str],
    size: int,
    device: torch.device,
    order: Order = "site",
) -> Iterator[Batch]:
    """Yield the images as batches. The fingerprints of the sites keep stale decoded images from being used."""
    sites = {site.name: site for site, _ in images}
    decoded = {name: _decoded(site, benchmark, fingerprints[name]) for name, site in sites.items()}
    for part in batched(images, size, order):
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
