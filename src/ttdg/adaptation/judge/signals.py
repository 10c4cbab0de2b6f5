"""Signals: label-free measurements of every candidate's prediction, from which the regressor predicts Dice.

A signal is one number for each candidate and image. It describes the entropy of the prediction, the shape of each
region, the agreement with the other candidates, or the distance of the batch statistics from the source statistics. The
signals of the fit to the universe are in `ttdg.prior.universe_signals`. All signals are computed batched over
candidates and images, without synchronising the host with the device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
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
    k, b, r = R.shape[:3]
    P, R = P.flatten(0, 1), R.flatten(0, 1)
    entropy = -(P * predictions.logits.flatten(0, 1)).sum(1) / math.log(P.shape[1])
    near = Boundary.of(R.flatten(0, 1) > 0.5)
    shapes = _shape_signals(R.flatten(0, 1), entropy, near)
    inner, outer = (x.to(R).view(k, b, r, *R.shape[2:]) for x in (near.inner_ring, near.outer_ring))
    shapes["stands out"] = _contrast(inner, outer, predictions.images)
    signals = {"entropy": entropy.mean((1, 2)).view(k, b)}
    for name, value in shapes.items():
        by_region = value.view(k, b, r).unbind(2)
        signals |= {f"{region} {name}": x for region, x in zip(regions, by_region, strict=True)}
    signals |= _agreements(R.unflatten(0, (k, b)), regions, predictions.unfused)
    distance = predictions.distance.unbind(1)
    return signals | {f"statistics {i}": x.expand(k, b) for i, x in enumerate(distance)}


@dataclass(frozen=True)
class Boundary:
    """Masks of regions and of the pixels near their boundaries, as 0 and 1 in one byte each."""

    mask: UInt8[Tensor, "n h w"]
    band: UInt8[Tensor, "n h w"]  # less than 2 pixels from the boundary, on either side
    inner_ring: UInt8[Tensor, "n h w"]  # inside, less than 4 pixels from the boundary
    outer_ring: UInt8[Tensor, "n h w"]  # outside, less than 4 pixels from the boundary

    @classmethod
    def of(cls, mask: Bool[Tensor, "n h w"]) -> "Boundary":
        """Dilate the regions and their complements together, by 2 pixels and then by 2 more."""
        both = torch.stack([mask, ~mask]).view(torch.uint8)
        by_two = _widen(_widen(both, 1), 1)
        region, complement = _widen(by_two, 2) & both.flip(0)
        return cls(both[0], by_two[0] & by_two[1], complement, region)


def _widen(x: UInt8[Tensor, "*n h w"], by: int) -> UInt8[Tensor, "*n h w"]:
    """The bitwise or of an image and its copies moved by `by` pixels in the four directions and the four diagonals.

    Repeated calls dilate by a square. Bytes are several times faster than pooling on a CPU.
    """
    for axis in (-2, -1):
        rest = x.shape[axis] - by
        if rest > 0:
            before, after = x.narrow(axis, 0, rest), x.narrow(axis, by, rest)
            x = x.clone()
            x.narrow(axis, by, rest).bitwise_or_(before)
            x.narrow(axis, 0, rest).bitwise_or_(after)
    return x


def _shape_signals(
    R: Float[Tensor, "n h w"], entropy: Float[Tensor, "m h w"], near: Boundary
) -> dict[str, Float[Tensor, " n"]]:
    """Size, confidence, boundary and connectedness of the region probability maps of `m` predictions."""
    mask, band = near.mask.to(R), near.band.to(R)
    inside, around, pixels = mask.sum((1, 2)), band.sum((1, 2)), R[0].numel()
    log_area = (inside / pixels + 1e-4).log()
    at_border = (band.unflatten(0, (len(entropy), -1)) * entropy[:, None]).flatten(0, 1)
    return {
        "area": log_area,
        "soft area": (R.mean((1, 2)) + 1e-4).log() - log_area,
        "confidence": (R * mask).sum((1, 2)) / inside.clamp(min=1),
        "peak": R.amax((1, 2)),
        "border entropy": at_border.sum((1, 2)) / around.clamp(min=1),
        "border length": (around / pixels + 1e-4).log() - 0.5 * log_area,
        "in one piece": _connected_share(F.max_pool2d(R[:, None], 4, ceil_mode=True)[:, 0]),
    }


def _connected_share(R: Float[Tensor, "n y x"]) -> Float[Tensor, " n"]:
    """Share of the cells with R > ½ that are connected to the most probable cell, by flood fill."""
    mask = R > 0.5
    inside = R * mask
    reached = (inside == inside.amax((1, 2), keepdim=True)) & mask
    if R.is_cpu:
        mask, reached = mask.view(torch.uint8), reached.view(torch.uint8)
        for _ in range(FLOOD_STEPS):
            reached = _widen(reached, 1).bitwise_and_(mask)
    else:  # a GPU runs each step in two kernels
        mask, reached = mask.to(R), reached.to(R)
        for _ in range(FLOOD_STEPS):
            reached = F.max_pool2d(reached[:, None], 3, 1, 1)[:, 0] * mask
    return reached.to(R).sum((1, 2)) / mask.to(R).sum((1, 2)).clamp(min=1)


def _contrast(
    inner: Float[Tensor, "k b r h w"], outer: Float[Tensor, "k b r h w"], images: Float[Tensor, "b c h w"]
) -> Float[Tensor, "k b r"]:
    """Difference of the mean colours of two rings, in standard deviations of the image."""
    inside, outside = (  # summed by rows first, which gives a GPU more work in parallel
        torch.einsum("bchw,kbrhw->kbrch", images, w).sum(4) / w.sum((3, 4)).clamp(min=1)[..., None]
        for w in (inner, outer)
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
