"""How many pixels have which probability: all that any threshold can tell."""

import math

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from ttdg.metrics.chunks import slices

STEPS = 510
"""Bin i holds i/510 <= p < (i+1)/510, so that the bins meet at every k/255 (E_φ) and at 1/2 (Dice)."""
HALF = STEPS // 2

LANES = 4  # neighbours count into different tables: adding to one counter again and again stalls a CPU


def histogram(
    probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Int[Tensor, "b r 2 511"]:
    """Pixels per bin, background and foreground of the truth apart.

    `floor(510 p)` is exact at the thresholds, in float32 and float64: p >= k/255 is bin >= 2k.
    """
    p, g = probabilities.flatten(0, 1), truth.view(torch.uint8).flatten(0, 1)
    return torch.cat([_histogram(*part) for part in slices(p, g)]).view(*truth.shape[:2], 2, STEPS + 1)


def _histogram(p: Float[Tensor, "n h w"], g: UInt8[Tensor, "n h w"]) -> Int[Tensor, "n 2 511"]:
    shape = (len(p), LANES, 2, STEPS + 1)
    key = torch.int16 if math.prod(shape) < 2**15 else torch.int32  # half the memory, half the time
    lane = torch.arange(p.shape[2], dtype=key, device=p.device) % LANES
    table = torch.arange(len(p), dtype=key, device=p.device)[:, None, None] * LANES + lane
    wide = torch.promote_types(p.dtype, torch.float32)
    bins = (p.to(wide) * STEPS).to(key).clamp_(0, STEPS)
    bins.add_(g.to(key), alpha=STEPS + 1).add_(table, alpha=2 * (STEPS + 1))
    return torch.bincount(bins.flatten(), minlength=math.prod(shape)).view(shape).sum(1)
