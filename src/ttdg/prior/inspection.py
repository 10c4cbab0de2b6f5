"""Measures whether the universe of a trained prior separates tissues and finds the same positions in all images.

Nodes are sampled by true labels and matched to universe points of any tissue, so that the labels do not help the
matching. Two controls are measured in the same way: a random universe with the same features, and nearest neighbours of
the network's features between pairs of images.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.data import Arrays, Normalisation, normalise
from ttdg.matching import round_matching
from ttdg.networks import feature_maps
from ttdg.prior import correspondence
from ttdg.prior.graph_prior import GraphPrior
from ttdg.prior.module import MorphologyPrior
from ttdg.prior.resizing import grid_size
from ttdg.prior.sampling import Nodes

BATCH_SIZE = 16  # images per forward pass


@dataclass(frozen=True)
class ImageNodes:
    """The nodes of the inspected images, on the CPU."""

    sites: tuple[str, ...]  # site of each image
    images: UInt8[Tensor, "m 3 s s"]
    nodes: Nodes
    raw: Float[Tensor, "m n c"]  # the network's features at the nodes, without the prior's projection
    relative: Float[Tensor, "m n 2"]  # coordinates relative to the structure, see `structure_coordinates`


@dataclass(frozen=True)
class MatchingMeasures:
    """Measures of one way of matching; None if a measure does not apply."""

    purity: float | None  # share of nodes whose universe point has their class
    pair_purity: float  # share of matched pairs of one class
    points_in_use: float | None  # perplexity of the universe points
    within_sites: float  # distance of matched nodes in structures, relative to random nodes of the same class
    across_sites: float  # the same for images of different sites
    cycle_violations: float | None


@torch.no_grad()
def collect_nodes(
    network: Any, prior: GraphPrior, sites: Mapping[str, Arrays], how: Normalisation
) -> ImageNodes:
    """Sample the nodes of all images of the sites, which need masks; `how` is the normalisation of images."""
    nodes, raw, relative = zip(*_batches_of_nodes(network, prior, sites, how), strict=True)
    joined = Nodes(*(torch.cat([getattr(part, name) for part in nodes]) for name in vars(nodes[0])))
    names = tuple(name for name, arrays in sites.items() for _ in arrays.cases)
    images = torch.cat([arrays.images for arrays in sites.values()])
    return ImageNodes(names, images, joined, torch.cat(raw), torch.cat(relative))


def compare_universes(inspected: ImageNodes, prior: MorphologyPrior) -> dict[str, MatchingMeasures]:
    """Measures of the prior's universe, of a random universe, of raw features, and of chance."""
    universes = (("universe", prior), ("random universe", prior.with_random_universe()))
    measures = {
        name: measure_matching(inspected, prior, points=match_ignoring_labels(universe, inspected.nodes))
        for name, universe in universes
    }
    neighbours = correspondence.nearest_neighbour_matches(inspected.raw, inspected.nodes.mask)
    by_chance = correspondence.chance_agreement(class_of_tissue(prior, inspected.nodes.labels))
    return {
        **measures,
        "raw features": measure_matching(inspected, prior, matches=neighbours),
        "any two nodes": MatchingMeasures(None, by_chance, None, 1.0, 1.0, None),
    }


def measure_matching(
    inspected: ImageNodes,
    prior: MorphologyPrior,
    *,
    points: Int[Tensor, "m n"] | None = None,
    matches: Int[Tensor, "m m n"] | None = None,
) -> MatchingMeasures:
    """Measures of a matching, given as the universe point of each node or as matches between pairs of images."""
    size = len(prior.universe)
    classes = class_of_tissue(prior, inspected.nodes.labels)
    structures = torch.where(classes > 1, classes, 0)
    if matches is None:
        assert points is not None
        matches = correspondence.matches_through_universe(points, size)
    same_site = torch.tensor([[a == b for b in inspected.sites] for a in inspected.sites])
    return MatchingMeasures(
        None if points is None else point_purity(points, classes, prior),
        correspondence.label_agreement(matches, classes),
        None if points is None else correspondence.perplexity(points, size),
        correspondence.relative_distance(matches, structures, inspected.relative, same_site),
        correspondence.relative_distance(matches, structures, inspected.relative, ~same_site),
        correspondence.cycle_violations(matches),
    )


def match_ignoring_labels(prior: MorphologyPrior, nodes: Nodes) -> Int[Tensor, "m n"]:
    """The universe point of each node in the best one-to-one matching of its image, without regard to tissues."""
    U = round_matching(prior.scores(nodes, typed=False).detach(), nodes.mask)
    return torch.where(U.sum(2) > 0, U.argmax(2), correspondence.UNMATCHED)


def purity_by_site(inspected: ImageNodes, prior: MorphologyPrior) -> dict[str, float]:
    """For each site the share of nodes whose universe point has their class."""
    points = match_ignoring_labels(prior, inspected.nodes)
    classes = class_of_tissue(prior, inspected.nodes.labels)
    sites = dict.fromkeys(inspected.sites)
    rows = {site: torch.tensor([name == site for name in inspected.sites]) for site in sites}
    return {site: point_purity(points[chosen], classes[chosen], prior) for site, chosen in rows.items()}


def point_purity(points: Int[Tensor, "m n"], classes: Int[Tensor, "m n"], prior: MorphologyPrior) -> float:
    """Share of nodes whose universe point has their class."""
    matched = points != correspondence.UNMATCHED
    agree = class_of_tissue(prior, prior.tissue_of.cpu())[points.clamp(min=0)] == classes
    return float(agree[matched].double().mean())


def class_of_tissue(prior: MorphologyPrior, tissues: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Tissues with the ring merged into the background: 0 is padding, 1 background, then the structures."""
    return torch.where(tissues == prior.spec.tissues, 1, tissues)


def _batches_of_nodes(
    network: Any, prior: GraphPrior, sites: Mapping[str, Arrays], how: Normalisation
) -> Iterator[tuple[Nodes, Tensor, Tensor]]:
    """For each batch of images the nodes, their raw features and their coordinates relative to the structure."""
    device = next(network.parameters()).device
    for arrays in sites.values():
        assert arrays.masks is not None
        batches = zip(arrays.images.split(BATCH_SIZE), arrays.masks.split(BATCH_SIZE), strict=True)
        for images, masks in batches:
            labels = masks.to(device).long()
            maps = feature_maps(network, normalise(images.to(device).float() / 255, how), prior.spec.levels)[
                1
            ]
            projected = prior.project(maps, labels.shape[1:])
            nodes = prior.nodes(projected, labels)
            raw = prior.nodes(_raw_features(prior, maps, projected), labels).features.cpu()
            on_cpu = Nodes(*(value.cpu() for value in vars(nodes).values()))
            yield on_cpu, raw, correspondence.structure_coordinates(on_cpu.coordinates, masks > 0)


def _raw_features(
    prior: GraphPrior, maps: Mapping[str, Tensor], projected: Tensor
) -> Float[Tensor, "b c y x"]:
    """The levels that the prior reads, each normalised to unit length, concatenated, on the grid of `projected`."""
    size = grid_size(maps, prior.spec.stride)
    levels = [
        F.interpolate(F.normalize(maps[name], dim=1), size=size, mode="bilinear", align_corners=False)
        for name in prior.spec.levels
    ]
    return F.normalize(torch.cat(levels, 1), dim=1)[..., : projected.shape[2], : projected.shape[3]]
