"""What can be seen of a prediction without labels: the judge's evidence, one row for each candidate and image.

Every signal is a number of one image's prediction (and of how it stands to the other candidates'); `universe` ones need
the morphology prior. All of it is batched over candidates × images, without a look at the host.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.judge.locations import PointLocations, location_error, match_separately
from ttdg.graphs import Nodes
from ttdg.metrics import region_probabilities
from ttdg.prior import MorphologyPrior
from ttdg.types import Regions

FLOOD = 40  # steps of the search for what hangs together, on the grid of stride 4


@dataclass(frozen=True)
class Evidence:
    """Candidates' answers as log-probabilities, and for each the map of projected features it was made from."""

    logits: Float[Tensor, "k b l h w"]
    projected: Float[Tensor, "k b n y x"]
    distance: Float[Tensor, "b f"]  # of the batch's BatchNorm statistics to the source's
    images: Float[Tensor, "b c h w"]
    plain: int  # candidates, the first, in which the universe has no part


@torch.no_grad()
def signals(
    evidence: Evidence,
    regions: Regions,
    prior: MorphologyPrior,
    places: PointLocations,
    *,
    only: Sequence[str] | None = None,
) -> dict[str, Float[Tensor, "k b"]]:
    """Named signals; those that start with "universe" come from the prior. `only`: what none of these needs is not
    computed."""
    k, b = evidence.logits.shape[:2]
    logits = evidence.logits.flatten(0, 1)
    P, R = logits.softmax(1), region_probabilities(logits, regions)
    found: dict[str, Tensor] = {}
    if only is None or any(name.startswith("universe") for name in only):
        universe = _universe(prior, places, evidence.projected.flatten(0, 1), P, regions)
        found |= {f"universe {key}": value for key, value in universe.items()}
    if only is None or not all(name.startswith("universe") for name in only):
        entropy = -torch.xlogy(P, P).sum(1) / math.log(P.shape[1])
        found["entropy"] = entropy.mean((1, 2))
        shapes = _shape(R.flatten(0, 1), entropy.repeat_interleave(len(regions), 0))
        shapes["stands out"] = _contrast((R > 0.5).to(R).unflatten(0, (k, b)), evidence.images)
        for key, value in shapes.items():
            each_region = value.view(k * b, len(regions)).unbind(1)
            found |= {f"{name} {key}": one for name, one in zip(regions, each_region, strict=True)}
    each = {key: value.unflatten(0, (k, b)) for key, value in found.items()}
    if "entropy" in each:
        each |= _agreements(R.unflatten(0, (k, b)), list(regions), evidence.plain)
        each |= {f"statistics {i}": x.expand(k, b) for i, x in enumerate(evidence.distance.unbind(1))}
    return each


def _shape(R: Float[Tensor, "n h w"], entropy: Float[Tensor, "n h w"]) -> dict[str, Tensor]:
    """Size, sharpness, roundness and connectedness of regions."""
    hard = (R > 0.5).to(R)
    area = hard.mean((1, 2))
    band = _border(hard)
    length = band.mean((1, 2))
    coarse = F.max_pool2d(hard[:, None], 4, ceil_mode=True)
    return {
        "area": (area + 1e-4).log(),
        "soft area": (R.mean((1, 2)) + 1e-4).log() - (area + 1e-4).log(),
        "confidence": (R * hard).sum((1, 2)) / hard.sum((1, 2)).clamp(min=1),
        "peak": R.amax((1, 2)),
        "border entropy": (entropy * band).sum((1, 2)) / band.sum((1, 2)).clamp(min=1),
        "border length": (length + 1e-4).log() - 0.5 * (area + 1e-4).log(),
        "in one piece": _one_piece(coarse[:, 0], F.max_pool2d(R[:, None], 4, ceil_mode=True)[:, 0]),
    }


def _border(hard: Tensor) -> Tensor:
    wide, narrow = _grown(hard, 2)
    return wide - narrow


def _grown(hard: Float[Tensor, "n h w"], by: int) -> tuple[Float[Tensor, "n h w"], Float[Tensor, "n h w"]]:
    """A mask dilated and eroded by a square: where the mean over the square is above 0, and where it is 1. A square
    is its rows, then its columns."""
    tall = F.avg_pool2d(hard[:, None], (2 * by + 1, 1), 1, (by, 0), count_include_pad=False)
    mean = F.avg_pool2d(tall, (1, 2 * by + 1), 1, (0, by), count_include_pad=False)[:, 0]
    return (mean > 0).to(hard), (mean == 1).to(hard)


def _one_piece(hard: Float[Tensor, "n y x"], R: Float[Tensor, "n y x"]) -> Float[Tensor, " n"]:
    """Share of the region that hangs together with its most certain place."""
    seed = (R * hard).flatten(1)
    reached = (seed == seed.amax(1, keepdim=True)).view_as(hard).to(hard) * hard
    for _ in range(FLOOD):
        reached = F.max_pool2d(reached[:, None], 3, 1, 1)[:, 0] * hard
    return reached.sum((1, 2)) / hard.sum((1, 2)).clamp(min=1)


def _contrast(hard: Float[Tensor, "k b r h w"], images: Float[Tensor, "b c h w"]) -> Float[Tensor, "k b r"]:
    """How far the colour just inside the border lies from that just outside, in the image's own deviations."""
    wide, narrow = (grown.view_as(hard) for grown in _grown(hard.flatten(0, 2), 4))
    inside, outside = (  # row by row first: a GPU has little to do in parallel otherwise
        torch.einsum("bchw,kbrhw->kbrch", images, w).sum(4) / w.sum((3, 4)).clamp(min=1)[..., None]
        for w in (hard - narrow, wide - hard)
    )
    deviation = images.std((2, 3), correction=0)[:, None] + 1e-3
    return ((inside - outside) / deviation).square().mean(3).sqrt()


def _agreements(R: Float[Tensor, "k b r h w"], names: list[str], plain: int) -> dict[str, Tensor]:
    """Soft Dice of every candidate with each in which the universe has no part, by region, and their mean."""
    low = F.avg_pool2d(R.flatten(0, 2)[:, None], 2, ceil_mode=True)[:, 0].unflatten(0, R.shape[:3]).flatten(3)
    both = torch.einsum("kbrp,jbrp->kjbr", low, low[:plain])
    size = low.square().sum(-1)
    dice = (2 * both + 1e-3) / (size[:, None] + size[None, :plain] + 1e-3)
    found: dict[str, Tensor] = {}
    for i, name in enumerate(names):
        found |= {f"{name} agrees with {j}": dice[:, j, :, i] for j in range(plain)}
        found[f"{name} agrees with all"] = dice[..., i].mean(1)
    return found


def _universe(
    prior: MorphologyPrior,
    places: PointLocations,
    projected: Float[Tensor, "n v y x"],
    P: Float[Tensor, "n l h w"],
    regions: Regions,
) -> dict[str, Tensor]:
    """How the prediction fits the universe: cosine energies, the universe's own reading against the network's, the
    energy and spread of the matching of its nodes, and whether the points lie where they lay at the source."""
    tau = prior.spec.tau
    weight = prior.by_label((prior.cosines(projected) / tau).exp())
    posterior = weight / weight.sum(1, keepdim=True)
    fit = (weight + 1e-6).log() * tau  # soft maximum over a label's points
    soft = F.interpolate(P, size=projected.shape[2:], mode="area")
    inside = 1 - soft[:, 0]
    own = (soft * fit).sum(1)  # fit to the points of the predicted label …
    margin = own - ((1 - soft) * fit).sum(1) / (soft.shape[1] - 1)  # … against that to the others
    found = {
        "fit": own.mean((1, 2)),
        "fit inside": _mean(own, inside),
        "margin": margin.mean((1, 2)),
        "margin inside": _mean(margin, inside),
        "certainty inside": _mean(posterior.amax(1), inside),
    }
    for name, labels in regions.items():
        mine, theirs = (torch.stack([x[:, label] for label in labels]).sum(0) for x in (posterior, soft))
        found[f"{name} agrees"] = (
            2 * (mine * theirs).sum((1, 2)) / (mine + theirs).sum((1, 2)).clamp(min=1e-3)
        )
        found[f"{name} area"] = ((mine.mean((1, 2)) + 1e-3) / (theirs.mean((1, 2)) + 1e-3)).log()
    return found | _matched(prior, places, prior.nodes(projected, _likeliest(P)))


def _likeliest(P: Float[Tensor, "n l h w"]) -> Int[Tensor, "n h w"]:
    """`P.argmax(1)`, label by label: several times faster where labels are few and pictures large."""
    best, label = P[:, 0], torch.zeros_like(P[:, 0], dtype=torch.long)
    for number in range(1, P.shape[1]):
        label = torch.where(P[:, number] > best, number, label)
        best = torch.maximum(best, P[:, number])
    return label


def _matched(prior: MorphologyPrior, places: PointLocations, nodes: Nodes) -> dict[str, Tensor]:
    """Each graph matched alone: candidates of one image must not vote for each other."""
    U = match_separately(prior, nodes)
    cosine = (U * prior.scores(nodes, typed=False)).sum(2)
    inside = nodes.mask & (nodes.labels > 1) & (nodes.labels <= prior.spec.labels)
    use = U.sum(1).clamp(min=1e-6)
    return {
        "energy": _mean(1 - cosine, nodes.mask),
        "energy inside": _mean(1 - cosine, inside),
        "spread": -(use * use.log()).sum(1) / nodes.mask.sum(1).clamp(min=1),
        "place": location_error(places, prior, nodes, U),
        "unusual": -(use * places.use.log()).sum(1) / use.sum(1),
        "tissues": nodes.mask.unflatten(1, (prior.spec.tissues, -1)).any(2).sum(1).to(cosine),
    }


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Over everything but the first axis, by weight; 0 where there is none."""
    w = weight.to(values)
    return (values * w).flatten(1).sum(1) / w.flatten(1).sum(1).clamp(min=1e-3)
