"""Signals: label-free measurements of every candidate's prediction, from which the regressor predicts Dice.

A signal is one number for each candidate and image. It describes the entropy of the prediction, the shape of each
region, the agreement with the other candidates, or the distance of the batch statistics from the source statistics. The
signals of the fit to the universe are in `ttdg.prior.universe_signals`. All signals are computed batched over
candidates and images, without synchronising the host with the device.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.judge.candidates import CandidatePredictions

FLOOD_STEPS = 40  # of the flood fill that finds a connected component, on a grid of stride 4


@torch.no_grad()
def prediction_signals(
    predictions: CandidatePredictions,
    P: Float[Tensor, "k b l h w"],
    R: Float[Tensor, "k b r h w"],
    regions: Sequence[str],
) -> dict[str, Float[Tensor, "k b"]]:
    """Compute all signals but those of the universe, by name.

    Args:
        predictions: predictions of the candidates.
        P: their label probabilities.
        R: their region probabilities.
        regions: names of the regions.
    """
    k, b = P.shape[:2]
    flat: dict[str, Tensor] = {}  # signals over candidates × images
    P, R = P.flatten(0, 1), R.flatten(0, 1)
    entropy = -torch.xlogy(P, P).sum(1) / math.log(P.shape[1])
    flat["entropy"] = entropy.mean((1, 2))
    shapes = _shape_signals(R.flatten(0, 1), entropy.repeat_interleave(len(regions), 0))
    shapes["stands out"] = _contrast((R > 0.5).to(R).unflatten(0, (k, b)), predictions.images)
    for name, value in shapes.items():
        by_region = value.view(k * b, len(regions)).unbind(1)
        flat |= {f"{region} {name}": x for region, x in zip(regions, by_region, strict=True)}
    signals = {name: value.unflatten(0, (k, b)) for name, value in flat.items()}
    signals |= _agreements(R.unflatten(0, (k, b)), regions, predictions.unfused)
    distance = predictions.distance.unbind(1)
    return signals | {f"statistics {i}": x.expand(k, b) for i, x in enumerate(distance)}


def _shape_signals(R: Float[Tensor, "n h w"], entropy: Float[Tensor, "n h w"]) -> dict[str, Tensor]:
    """Size, confidence, boundary and connectedness of `n` region probability maps."""
    mask = (R > 0.5).to(R)
    area = mask.mean((1, 2))
    dilated, eroded = _dilate_and_erode(mask, 2)
    band = dilated - eroded  # around the boundary
    length = band.mean((1, 2))
    coarse = F.max_pool2d(mask[:, None], 4, ceil_mode=True)
    return {
        "area": (area + 1e-4).log(),
        "soft area": (R.mean((1, 2)) + 1e-4).log() - (area + 1e-4).log(),
        "confidence": (R * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1),
        "peak": R.amax((1, 2)),
        "border entropy": (entropy * band).sum((1, 2)) / band.sum((1, 2)).clamp(min=1),
        "border length": (length + 1e-4).log() - 0.5 * (area + 1e-4).log(),
        "in one piece": _connected_share(coarse[:, 0], F.max_pool2d(R[:, None], 4, ceil_mode=True)[:, 0]),
    }


def _dilate_and_erode(
    mask: Float[Tensor, "n h w"], by: int
) -> tuple[Float[Tensor, "n h w"], Float[Tensor, "n h w"]]:
    """Dilation and erosion by a square of side 2·by + 1: where its mean is above 0, and where its mean is 1.

    The mean over the square is computed separably, over columns and then over rows.
    """
    tall = F.avg_pool2d(mask[:, None], (2 * by + 1, 1), 1, (by, 0), count_include_pad=False)
    mean = F.avg_pool2d(tall, (1, 2 * by + 1), 1, (0, by), count_include_pad=False)[:, 0]
    return (mean > 0).to(mask), (mean == 1).to(mask)


def _connected_share(mask: Float[Tensor, "n y x"], R: Float[Tensor, "n y x"]) -> Float[Tensor, " n"]:
    """Share of the region that is connected to its most probable cell, by flood fill."""
    seed = (R * mask).flatten(1)
    reached = (seed == seed.amax(1, keepdim=True)).view_as(mask).to(mask) * mask
    for _ in range(FLOOD_STEPS):
        reached = F.max_pool2d(reached[:, None], 3, 1, 1)[:, 0] * mask
    return reached.sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)


def _contrast(mask: Float[Tensor, "k b r h w"], images: Float[Tensor, "b c h w"]) -> Float[Tensor, "k b r"]:
    """Difference of mean colour just inside and just outside the boundary, in standard deviations of the image."""
    dilated, eroded = (x.view_as(mask) for x in _dilate_and_erode(mask.flatten(0, 2), 4))
    inside, outside = (  # summed by rows first, which gives a GPU more work in parallel
        torch.einsum("bchw,kbrhw->kbrch", images, w).sum(4) / w.sum((3, 4)).clamp(min=1)[..., None]
        for w in (mask - eroded, dilated - mask)
    )
    deviation = images.std((2, 3), correction=0)[:, None] + 1e-3
    return ((inside - outside) / deviation).square().mean(3).sqrt()


def _agreements(R: Float[Tensor, "k b r h w"], regions: Sequence[str], unfused: int) -> dict[str, Tensor]:
    """Soft Dice of every candidate with each unfused candidate, and the mean over these, by region."""
    low = F.avg_pool2d(R.flatten(0, 2)[:, None], 2, ceil_mode=True)[:, 0].unflatten(0, R.shape[:3]).flatten(3)
    intersection = torch.einsum("kbrp,jbrp->kjbr", low, low[:unfused])
    size = low.square().sum(-1)
    dice = (2 * intersection + 1e-3) / (size[:, None] + size[None, :unfused] + 1e-3)
    signals: dict[str, Tensor] = {}
    for i, region in enumerate(regions):
        signals |= {f"{region} agrees with {j}": dice[:, j, :, i] for j in range(unfused)}
        signals[f"{region} agrees with all"] = dice[..., i].mean(1)
    return signals
