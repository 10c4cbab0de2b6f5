"""Where the universe's points lie: how often each is met at the source, and how far from the structure's middle.

Morphology on the output: a prediction whose nodes are matched to points that are rare, or that lie elsewhere in an
image of the source, has another shape or size than the anatomy. Distances are measured in the structure's own size, so
that neither the zoom nor the orientation of a picture counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.graphs import Nodes
from ttdg.matching import assign
from ttdg.prior import MorphologyPrior, feature_maps

TYPICAL = 0.1  # of the structure's size: no point is held to a place more sharply


@dataclass(frozen=True)
class PointLocations:
    """One row for each point of the universe."""

    radius: Float[Tensor, " d"]  # from the structure's middle, its own size being 1
    spread: Float[Tensor, " d"]  # standard deviation of that
    use: Float[Tensor, " d"]  # share of an image's nodes, all points together being 1


def match_separately(prior: MorphologyPrior, nodes: Nodes) -> Float[Tensor, "b n d"]:
    """Every graph matched by itself."""
    return assign(prior.scores(nodes), nodes.mask, tau=prior.spec.tau_match, max_sweeps=prior.spec.sweeps)


@torch.no_grad()
def point_locations(
    network: nn.Module, priors: Mapping[str, MorphologyPrior], batches: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, PointLocations]:
    """From source images (b c h w, normalised) and their true labels (b h w). The priors share φ."""
    first = next(iter(priors.values()))
    sums = {name: prior.universe.new_zeros(3, len(prior.universe)) for name, prior in priors.items()}
    for images, labels in batches:
        levels = {name: x.float() for name, x in feature_maps(network, images)[1].items()}
        nodes = first.nodes(first.project(levels, images.shape[2:]), labels)
        r = relative_radii(first, nodes)[..., None]
        for name, prior in priors.items():
            U = match_separately(prior, nodes) * nodes.mask[..., None]
            sums[name] += torch.stack(
                [(U * power).sum((0, 1)) for power in (torch.ones_like(r), r, r.square())]
            )
    return {name: _placed(each) for name, each in sums.items()}


def _placed(sums: Float[Tensor, "3 d"]) -> PointLocations:
    """From how often each point was met, and the sums of its radii and of their squares."""
    weight = sums[0].clamp(min=1e-6)
    mean = sums[1] / weight
    spread = (sums[2] / weight - mean.square()).clamp(min=TYPICAL**2).sqrt()
    use = sums[0] + 1  # a point that was never met is rare, not impossible
    return PointLocations(mean, spread, use / use.sum())


def relative_radii(prior: MorphologyPrior, nodes: Nodes) -> Float[Tensor, "b n"]:
    """Distance of every node from the middle of the structures' nodes, in units of their mean distance from it."""
    inside = (nodes.mask & (nodes.labels > 1) & (nodes.labels <= prior.spec.labels))[..., None]
    count = inside.sum(1, keepdim=True).clamp(min=1)
    middle = (nodes.coordinates * inside).sum(1, keepdim=True) / count
    away = (nodes.coordinates - middle).square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
    size = (away * inside).sum(1, keepdim=True) / count
    return (away / size.clamp(min=0.01))[..., 0]


def location_error(
    places: PointLocations, prior: MorphologyPrior, nodes: Nodes, U: Float[Tensor, "b n d"]
) -> Float[Tensor, " b"]:
    """Mean squared deviation of the structures' and the ring's nodes from where their points lay at the source."""
    z = ((relative_radii(prior, nodes)[..., None] - places.radius) / places.spread).clamp(-4, 4)
    near = (nodes.mask & (nodes.labels > 1)).to(z)
    weight = U * near[..., None]
    return (weight * z.square()).sum((1, 2)) / weight.sum((1, 2)).clamp(min=1e-3)
