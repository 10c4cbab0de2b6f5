"""Locations of the universe points at the source: distance from the structure's centre, and frequency of use.

A prediction with an unusual shape or size has nodes that match rare points, or points that lie at another distance
from the centre in source images. Distances are measured in units of the structure's own size, so that the signals
depend neither on the zoom nor on the orientation of an image.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.matching import assign
from ttdg.networks import feature_maps
from ttdg.prior.module import MorphologyPrior
from ttdg.prior.sampling import Nodes

MIN_SPREAD = 0.1  # lower bound of `PointLocations.spread`, in units of the structure's size


@dataclass(frozen=True)
class PointLocations:
    """Location and frequency of every universe point in source images."""

    radius: Float[Tensor, " d"]  # mean distance from the structure's centre, in units of the structure's size
    spread: Float[Tensor, " d"]  # standard deviation of that distance
    use: Float[Tensor, " d"]  # share of all nodes that are matched to the point; sums to 1


def match_separately(prior: MorphologyPrior, nodes: Nodes) -> Float[Tensor, "b n d"]:
    """Match every graph to the universe on its own, without consensus between the graphs of the batch."""
    return assign(prior.scores(nodes), nodes.mask, tau=prior.spec.tau_match, max_sweeps=prior.spec.sweeps)


@torch.no_grad()
def point_locations(
    network: nn.Module, priors: Mapping[str, MorphologyPrior], batches: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, PointLocations]:
    """Measure the locations of each prior's points in labelled source images.

    Args:
        network: the source network.
        priors: priors by name, which differ in their universe and share one projection.
        batches: normalised images (b c h w) with their label maps (b h w).
    """
    first = next(iter(priors.values()))
    sums = {name: prior.universe.new_zeros(3, len(prior.universe)) for name, prior in priors.items()}
    for images, labels in batches:
        if images.is_cpu:
            images = images.contiguous(memory_format=torch.channels_last)  # its convolutions are faster then
        maps = feature_maps(network, images, first.spec.levels)[1]
        nodes = first.nodes(first.project(maps, images.shape[2:]), labels)
        r = relative_radii(first, nodes)[..., None]
        for name, prior in priors.items():
            U = match_separately(prior, nodes) * nodes.mask[..., None]
            sums[name] += torch.stack(
                [(U * power).sum((0, 1)) for power in (torch.ones_like(r), r, r.square())]
            )
    return {name: _from_sums(of_prior) for name, of_prior in sums.items()}


def _from_sums(sums: Float[Tensor, "3 d"]) -> PointLocations:
    """Locations from the sums, for every point, of 1, r and r² over the nodes matched to it."""
    weight = sums[0].clamp(min=1e-6)
    mean = sums[1] / weight
    spread = (sums[2] / weight - mean.square()).clamp(min=MIN_SPREAD**2).sqrt()
    use = sums[0] + 1  # add-one smoothing: a point without matches is rare, not impossible
    return PointLocations(mean, spread, use / use.sum())


def relative_radii(prior: MorphologyPrior, nodes: Nodes) -> Float[Tensor, "b n"]:
    """Distance of every node from the centre of the structure nodes, divided by their mean distance from it."""
    inside = (nodes.mask & (nodes.labels > 1) & (nodes.labels <= prior.spec.labels))[..., None]
    count = inside.sum(1, keepdim=True).clamp(min=1)
    centre = (nodes.coordinates * inside).sum(1, keepdim=True) / count
    distance = (nodes.coordinates - centre).square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
    size = (distance * inside).sum(1, keepdim=True) / count
    return (distance / size.clamp(min=0.01))[..., 0]


def radius_scores(locations: PointLocations, prior: MorphologyPrior, nodes: Nodes) -> Float[Tensor, "b n d"]:
    """z-score of the radius of every node under the location of every point, at most ±4."""
    return ((relative_radii(prior, nodes)[..., None] - locations.radius) / locations.spread).clamp(-4, 4)
