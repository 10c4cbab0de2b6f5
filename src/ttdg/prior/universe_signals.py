"""Label-free signals of how well a predicted segmentation fits the universe."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ttdg.prior.locations import PointLocations, match_separately, radius_scores
from ttdg.prior.module import MorphologyPrior
from ttdg.prior.sampling import Nodes
from ttdg.types import Regions


@torch.no_grad()
def universe_signals(
    prior: MorphologyPrior,
    locations: PointLocations,
    projected: Float[Tensor, "k b v y x"],
    P: Float[Tensor, "k b l h w"],
    regions: Regions,
    weight: Float[Tensor, "k b l y x"] | None = None,
) -> dict[str, Float[Tensor, "k b"]]:
    """All signals of `k` predictions for each of `b` images; every prediction is measured on its own.

    The signals compare the predicted label of each grid cell with the universe points most similar to its feature
    ("fit", "margin", "certainty"), the universe's segmentation with the predicted one ("agrees", "area"), and the
    nodes of the prediction with the points that they are matched to ("energy", "spread", "place", "unusual"). Every
    name starts with "universe".

    Args:
        prior: the prior whose universe is used.
        locations: locations of the prior's points at the source.
        projected: unit feature vectors on the node grid, from `MorphologyPrior.project`.
        P: predicted label probabilities at image resolution.
        regions: the labels of each evaluated region.
        weight: `label_weights` of `projected`, if they are known already.
    """
    weight = (label_weights(prior, projected) if weight is None else weight).flatten(0, 1)
    nodes = prior.nodes(projected.flatten(0, 1), _argmax_labels(P.flatten(0, 1)))
    signals = _fit_signals(weight, P.flatten(0, 1), prior.spec.tau, regions)
    signals |= matching_signals(prior, locations, nodes)
    return {f"universe {name}": value.unflatten(0, P.shape[:2]) for name, value in signals.items()}


@torch.no_grad()
def label_weights(
    prior: MorphologyPrior, projected: Float[Tensor, "k b v y x"]
) -> Float[Tensor, "k b l y x"]:
    """Sum of exp(cosine/τ) over the universe points of each label; divided by its sum over labels, the posterior.

    Both sums are matrix products over the last axis, which is that of the features in memory after
    `MorphologyPrior.project`.
    """
    d = len(prior.universe)
    label_of = prior.by_label(torch.eye(d, device=projected.device, dtype=projected.dtype))
    points = prior.universe_points() / prior.spec.tau
    return ((projected.movedim(2, -1) @ points.T).exp_() @ label_of).movedim(-1, 2)


def _fit_signals(
    weight: Float[Tensor, "n l y x"], P: Float[Tensor, "n l h w"], tau: float, regions: Regions
) -> dict[str, Float[Tensor, " n"]]:
    """Signals of the predicted labels on the node grid and the universe's label weights there."""
    posterior = weight / weight.sum(1, keepdim=True)
    fit = (weight + 1e-6).log() * tau  # soft maximum of the cosines over a label's points
    soft = F.interpolate(P, size=weight.shape[2:], mode="area")
    inside = 1 - soft[:, 0]
    own = (soft * fit).sum(1)  # fit to the points of the predicted label
    margin = own - ((1 - soft) * fit).sum(1) / (soft.shape[1] - 1)  # minus the mean fit to the other labels
    signals = {
        "fit": own.mean((1, 2)),
        "fit inside": _weighted_mean(own, inside),
        "margin": margin.mean((1, 2)),
        "margin inside": _weighted_mean(margin, inside),
        "certainty inside": _weighted_mean(posterior.amax(1), inside),
    }
    for name, labels in regions.items():
        ours, theirs = (torch.stack([x[:, label] for label in labels]).sum(0) for x in (posterior, soft))
        signals[f"{name} agrees"] = (
            2 * (ours * theirs).sum((1, 2)) / (ours + theirs).sum((1, 2)).clamp(min=1e-3)
        )
        signals[f"{name} area"] = ((ours.mean((1, 2)) + 1e-3) / (theirs.mean((1, 2)) + 1e-3)).log()
    return signals


def matching_signals(
    prior: MorphologyPrior, locations: PointLocations, nodes: Nodes
) -> dict[str, Float[Tensor, " n"]]:
    """Signals of the matching. Graphs are matched separately: candidates of one image must not support each other."""
    z = radius_scores(locations, prior, nodes)
    U = match_separately(prior, nodes)
    cosine = (U * prior.scores(nodes, typed=False)).sum(2)
    inside = nodes.mask & (nodes.labels > 1) & (nodes.labels <= prior.spec.labels)
    structures = U * (nodes.mask & (nodes.labels > 1))[..., None]  # matches of structure and ring nodes
    use = U.sum(1).clamp(min=1e-6)
    return {
        "energy": _weighted_mean(1 - cosine, nodes.mask),
        "energy inside": _weighted_mean(1 - cosine, inside),
        "spread": -(use * use.log()).sum(1) / nodes.mask.sum(1).clamp(min=1),
        "place": _weighted_mean(z.square(), structures),
        "unusual": -(use * locations.use.log()).sum(1) / use.sum(1),
        "tissues": nodes.mask.unflatten(1, (prior.spec.tissues, -1)).any(2).sum(1).to(cosine),
    }


def _argmax_labels(P: Float[Tensor, "n l h w"]) -> Int[Tensor, "n h w"]:
    """`P.argmax(1)` by one comparison a label: several times faster for few labels and large images."""
    best, label = P[:, 0], torch.zeros_like(P[:, 0], dtype=torch.long)
    for number in range(1, P.shape[1]):
        label = torch.where(P[:, number] > best, number, label)
        best = torch.maximum(best, P[:, number])
    return label


def _weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean over all axes but the first; 0 where the weights sum to 0."""
    w = weight.to(values)
    return (values * w).flatten(1).sum(1) / w.flatten(1).sum(1).clamp(min=1e-3)
