"""What a morphology prior knows: whether its universe tells tissues apart and finds the same place in every image.

Nodes are taken by true labels and matched freely, so that the universe gets no help. Beside it stand a random universe
over the same features, and the network's own features matched to their nearest neighbours, image by image.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.data import Arrays, Normalisation, normalise
from ttdg.graphs import Nodes
from ttdg.matching import round_matching
from ttdg.prior import correspondence as c
from ttdg.prior.module import MorphologyPrior, feature_maps

TOGETHER = 16  # images a forward pass


@dataclass(frozen=True)
class ImageNodes:
    """The nodes of some images, on the CPU."""

    sites: tuple[str, ...]  # of each image
    images: UInt8[Tensor, "m 3 s s"]
    nodes: Nodes
    raw: Float[Tensor, "m n c"]  # the network's own features at the nodes
    places: Float[Tensor, "m n 2"]  # seen from the structure


@dataclass(frozen=True)
class MatchingMeasures:
    """Of one way of matching; None where a measure does not apply."""

    purity: float | None  # nodes whose universe point is of their class
    pair_purity: float  # matched pairs of one class
    points_in_use: float | None
    within_sites: float  # distance of matched nodes of a structure, relative to any two of its class
    across_sites: float
    cycle_violations: float | None


@torch.no_grad()
def collect_nodes(
    network: Any, prior: MorphologyPrior, sites: Mapping[str, Arrays], how: Normalisation
) -> ImageNodes:
    nodes, raw, places = zip(*_nodes(network, prior, sites, how), strict=True)
    joined = Nodes(*(torch.cat([getattr(part, name) for part in nodes]) for name in vars(nodes[0])))
    names = tuple(name for name, arrays in sites.items() for _ in arrays.cases)
    images = torch.cat([arrays.images for arrays in sites.values()])
    return ImageNodes(names, images, joined, torch.cat(raw), torch.cat(places))


def compare_universes(seen: ImageNodes, prior: MorphologyPrior) -> dict[str, MatchingMeasures]:
    """The prior, a universe that knows nothing, no universe at all, and chance."""
    found = {
        name: measure_matching(seen, prior, points=free_points(each, seen.nodes))
        for name, each in (("universe", prior), ("random universe", prior.with_random_universe()))
    }
    raw = measure_matching(seen, prior, matches=c.nearest(seen.raw, seen.nodes.mask))
    chance = MatchingMeasures(
        None, c.chance_agreement(classes_of(prior, seen.nodes.labels)), None, 1.0, 1.0, None
    )
    return {**found, "raw features": raw, "any two nodes": chance}


def measure_matching(
    seen: ImageNodes,
    prior: MorphologyPrior,
    *,
    points: Int[Tensor, "m n"] | None = None,
    matches: Int[Tensor, "m m n"] | None = None,
) -> MatchingMeasures:
    """Of a matching through universe points, or of one between pairs of images."""
    size = len(prior.universe)
    classes = classes_of(prior, seen.nodes.labels)
    structures = torch.where(classes > 1, classes, 0)
    if matches is None:
        assert points is not None
        matches = c.through_points(points, size)
    same = torch.tensor([[a == b for b in seen.sites] for a in seen.sites])
    return MatchingMeasures(
        None if points is None else site_purity(points, classes, prior),
        c.label_agreement(matches, classes),
        None if points is None else c.perplexity(points, size),
        c.relative_distance(matches, structures, seen.places, same),
        c.relative_distance(matches, structures, seen.places, ~same),
        c.cycle_violations(matches),
    )


def free_points(prior: MorphologyPrior, nodes: Nodes) -> Int[Tensor, "m n"]:
    """Each node's universe point in the best one-to-one matching of its image, whatever its tissue."""
    U = round_matching(prior.scores(nodes, typed=False).detach(), nodes.mask)
    return torch.where(U.sum(2) > 0, U.argmax(2), c.NONE)


def purity_by_site(seen: ImageNodes, prior: MorphologyPrior) -> dict[str, float]:
    points, classes = free_points(prior, seen.nodes), classes_of(prior, seen.nodes.labels)
    rows = {site: torch.tensor([name == site for name in seen.sites]) for site in dict.fromkeys(seen.sites)}
    return {site: site_purity(points[chosen], classes[chosen], prior) for site, chosen in rows.items()}


def site_purity(points: Int[Tensor, "m n"], classes: Int[Tensor, "m n"], prior: MorphologyPrior) -> float:
    """Share of nodes whose universe point is of their class."""
    matched = points != c.NONE
    like = classes_of(prior, prior.tissue_of.cpu())[points.clamp(min=0)] == classes
    return float(like[matched].double().mean())


def classes_of(prior: MorphologyPrior, tissues: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """1 is the background, its ring included; 0 is padding."""
    return torch.where(tissues == prior.spec.tissues, 1, tissues)


def _nodes(
    network: Any, prior: MorphologyPrior, sites: Mapping[str, Arrays], how: Normalisation
) -> Iterator[tuple[Nodes, Tensor, Tensor]]:
    device = next(network.parameters()).device
    for arrays in sites.values():
        assert arrays.masks is not None
        for images, masks in zip(arrays.images.split(TOGETHER), arrays.masks.split(TOGETHER), strict=True):
            labels = masks.to(device).long()
            maps = feature_maps(network, normalise(images.to(device).float() / 255, how))[1]
            projected = prior.project(maps, labels.shape[1:])
            nodes = prior.nodes(projected, labels)
            raw = prior.nodes(_raw(prior, maps, projected), labels).features.cpu()
            on_cpu = Nodes(*(value.cpu() for value in vars(nodes).values()))
            yield on_cpu, raw, c.in_structure(on_cpu.coordinates, masks > 0)


def _raw(prior: MorphologyPrior, maps: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, "b c y x"]:
    """The levels the prior reads, as they are: each of unit length, side by side."""
    stride = prior.spec.stride
    y, x = (2 * side // stride for side in next(iter(maps.values())).shape[2:])
    levels = [
        F.interpolate(F.normalize(maps[name], dim=1), size=(y, x), mode="bilinear", align_corners=False)
        for name in prior.spec.levels
    ]
    return F.normalize(torch.cat(levels, 1), dim=1)[..., : like.shape[2], : like.shape[3]]
