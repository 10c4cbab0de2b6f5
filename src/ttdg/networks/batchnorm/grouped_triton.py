# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernel for `GroupedMode`: one launch for each layer instead of 25 launches of torch kernels.

Each program reads a channel of a group twice: first to compute its statistics, then, from the cache, to normalise it.
This module is imported only for CUDA tensors.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.networks import batchnorm

BLOCK = 2048  # values that a program processes at a time


def grouped_batch_norm(
    layer: _BatchNorm, x: Tensor, rho: Tensor, learned: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised batch (kb c h w), and means and unbiased variances (k c) of its k groups."""
    k, c, area = len(rho), x.shape[1], x.shape[2] * x.shape[3]
    x = x.contiguous()
    y = torch.empty_like(x)
    mean, var = (torch.empty(k, c, device=x.device) for _ in range(2))
    source = batchnorm.running_statistics(layer)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _normalise[(c, k)](
            x, y, mean, var, *source, layer.weight, layer.bias, rho, rho if learned is None else learned,
            layer.eps, c, area, len(x) // k, HAS_LEARNED=learned is not None,
            BLOCK=min(BLOCK, max(16, triton.next_power_of_2(area))), num_warps=4 if area < 4 * BLOCK else 8,
        )  # fmt: skip
    return y, mean, var


@triton.jit
@no_type_check  # Triton compiles the source, so no type checker may wrap this function
def _normalise(
    x, y, mean, var, source_mean, source_var, weight, bias, rho, learned, eps, c, area, images,
    HAS_LEARNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channel, group = tl.program_id(0), tl.program_id(1)
    here, at = group * c + channel, tl.arange(0, BLOCK)
    start = (group * images).to(tl.int64) * c * area + channel.to(tl.int64) * area
    mu = tl.load(source_mean + channel)
    first, second = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for image in range(
        images
    ):  # sums relative to the source mean, which is close enough to the group mean for accuracy
        for offset in range(0, area, BLOCK):
            inside = offset + at < area
            value = tl.load(x + start + image * c * area + offset + at, mask=inside, other=mu)
            first += value - mu
            second += (value - mu) * (value - mu)
    n = images * area
    shift = tl.sum(first, 0) / n
    v = tl.maximum(tl.sum(second, 0) - n * shift * shift, 0.0) / tl.maximum(n - 1, 1)
    tl.store(mean + here, mu + shift)
    tl.store(var + here, v)

    share = tl.load(rho + group)
    if HAS_LEARNED:
        share = tl.where(share == -1.0, tl.load(learned), share)  # LEARNED
    old = tl.load(source_var + channel)
    scale = tl.load(weight + channel) / tl.sqrt(old + share * (v - old) + eps)
    moved = tl.load(bias + channel) - (mu + share * shift) * scale
    for image in range(images):
        for offset in range(0, area, BLOCK):
            inside = offset + at < area
            place = start + image * c * area + offset + at
            value = tl.load(x + place, mask=inside)
            tl.store(y + place, value * scale + moved, mask=inside)
