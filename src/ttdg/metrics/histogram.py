"""Histograms of probabilities on foreground and background: sufficient for scores at any threshold."""

import math

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from ttdg.metrics.chunks import one_thread, slices

STEPS = 510
"""Bin i holds i/510 <= p < (i+1)/510, so that every k/255 (E_φ) and 1/2 (Dice) is a bin edge."""
HALF = STEPS // 2
"""First bin of p >= 1/2."""

LANES = 4  # neighbouring pixels use different tables, because repeated additions to one counter stall a CPU


@one_thread()
def histogram(
    probabilities: Float[Tensor, "b r h w"], truth: Bool[Tensor, "b r h w"]
) -> Int[Tensor, "b r 2 511"]:
    """Pixels per bin of probability, separately for background (0) and foreground (1) of the truth.

    `floor(510 p)` is exact at the thresholds, in float32 and float64: p >= k/255 is equivalent to bin >= 2k.
    """
    p, g = probabilities.detach().flatten(0, 1), truth.view(torch.uint8).flatten(0, 1)
    parts = list(slices(p.to(torch.promote_types(p.dtype, torch.float32)), g))
    table, scaled = _tables(parts[0][0]), torch.empty_like(parts[0][0])
    counts = [_histogram(table[: len(part[0])], scaled[: len(part[0])], *part) for part in parts]
    return torch.cat(counts).view(*truth.shape[:2], 2, STEPS + 1)


def _histogram(
    table: Int[Tensor, "n 1 w"],
    scaled: Float[Tensor, "n h w"],
    p: Float[Tensor, "n h w"],
    g: UInt8[Tensor, "n h w"],
) -> Int[Tensor, "n 2 511"]:
    bins = torch.mul(p, STEPS, out=scaled).to(table.dtype).clamp_(0, STEPS)
    bins.add_(g.to(table.dtype), alpha=STEPS + 1).add_(table)
    shape = (len(p), LANES, 2, STEPS + 1)
    return torch.bincount(bins.flatten(), minlength=math.prod(shape)).view(shape).sum(1)


def _tables(p: Float[Tensor, "n h w"]) -> Int[Tensor, "n 1 w"]:
    """Offset of the counters of each map and column, in the smallest integer type, which halves the time."""
    size = 2 * (STEPS + 1)
    lane = torch.arange(p.shape[2], device=p.device) % LANES
    first = (torch.arange(len(p), device=p.device)[:, None, None] * LANES + lane) * size
    return first.to(torch.int16 if len(p) * LANES * size < 2**15 else torch.int32)
