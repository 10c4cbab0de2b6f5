"""BatchNorm over a stack of groups, each with its own share of its own statistics, and how far these lie from home."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.networks import batchnorm

Normalise = Callable[[_BatchNorm, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]
LEARNED = -1.0  # as ρ: each layer's own weight, fitted at source time


@dataclass(frozen=True)
class Seen:
    """What a layer saw: means and variances of the groups; none where they had too few values."""

    layer: _BatchNorm
    mean: Float[Tensor, "k c"] | None = None
    var: Float[Tensor, "k c"] | None = None


@dataclass
class GroupedMode:
    """(1−ρ)·source + ρ·group, for means and variances (unbiased, as the running ones are), group by group.

    `seen` is filled during the pass, layer by layer.
    """

    rho: Float[Tensor, " k"]
    seen: list[Seen] = field(default_factory=list)

    def __call__(self, layer: _BatchNorm, x: Float[Tensor, "kb c h w"]) -> Float[Tensor, "kb c h w"]:
        if x.numel() // (len(self.rho) * x.shape[1]) < batchnorm.FEWEST:
            self.seen.append(Seen(layer))
            return batchnorm.EVAL(layer, x)
        fused = gpu_program() if x.is_cuda and not torch.is_grad_enabled() else None
        y, mean, var = (fused or _normalise)(layer, x, self.rho, getattr(layer, "own_rho", None))
        self.seen.append(Seen(layer, mean, var))
        return y


@cache
def gpu_program() -> Normalise | None:
    """The GPU program, where triton is there and can compile; it comes with most of torch's CUDA builds."""
    try:
        from ttdg.networks.batchnorm.grouped_triton import grouped_batch_norm

        layer = nn.BatchNorm2d(1).cuda()
        grouped_batch_norm(layer, torch.ones(1, 1, 4, 4, device="cuda"), torch.ones(1, device="cuda"), None)
    except (ImportError, RuntimeError, OSError) as error:
        warnings.warn(
            f"BatchNorm of a batch's readings runs unfused, more slowly: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return grouped_batch_norm


def _normalise(
    layer: _BatchNorm, x: Tensor, rho: Float[Tensor, " k"], own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised stack, and means and variances of its groups. The statistics are constants to the gradient."""
    mean, var = batchnorm.running(layer)
    m, v = moments(x.detach(), len(rho))
    share = rho[:, None] if own is None else torch.where(rho[:, None] == LEARNED, own, rho[:, None])
    scale = layer.weight / (torch.lerp(var.expand_as(v), v, share) + layer.eps).sqrt()
    shift = layer.bias - torch.lerp(mean.expand_as(m), m, share) * scale
    wide = (slice(None), None, slice(None), None, None)
    y = torch.addcmul(shift[wide], x.unflatten(0, (len(rho), -1)), scale[wide])
    return y.flatten(0, 1), m, v


def moments(x: Float[Tensor, "kb c h w"], groups: int) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]]:
    """Means and variances (unbiased) of each group. On a GPU from those of its images, since reducing along the last
    axes alone is several times faster; on a CPU group by group, by the program that moves running statistics, which is
    four times as fast as `var_mean`."""
    if x.is_cpu:
        mean, var = x.new_zeros(2, groups, x.shape[1])
        for group, m, v in zip(x.chunk(groups), mean, var, strict=True):
            torch.batch_norm_update_stats(group, m, v, 1.0)
        return mean, var
    n = x[0, 0].numel()
    v, m = (moment.unflatten(0, (groups, -1)) for moment in torch.var_mean(x, dim=(2, 3), correction=0))
    mean, total = m.mean(1), n * m.shape[1]
    spread = (v + (m - mean[:, None]).square()).mean(1)
    return mean, spread * (total / max(total - 1, 1))


def distance(seen: Sequence[Seen], groups: int) -> Float[Tensor, "g f"]:
    """How far the first `groups` groups' statistics lie from the source's, in the first, the middle and the last third
    of the layers: squared shift of the means in units of the source's variance, and the log ratio of variances. All
    layers at once; one that saw too little says 0."""
    told = [s for s in seen if s.mean is not None]
    mean, var = (torch.cat([getattr(s, name)[:groups] for s in told], 1) for name in ("mean", "var"))
    source = (batchnorm.running(s.layer) for s in told)
    source_mean, source_var = (torch.cat(buffers) for buffers in zip(*source, strict=True))
    source_var = source_var + told[0].layer.eps
    widths = tuple(0 if s.mean is None else s.mean.shape[1] for s in seen)
    by_layer, by_third = _shares(widths, mean.device)
    shift = ((mean - source_mean).square() / source_var) @ by_layer
    ratio = (var / source_var).clamp(min=1e-6).log().abs() @ by_layer
    return (torch.stack([shift.log1p(), ratio]) @ by_third).movedim(0, 2).flatten(1)


@cache
def _shares(
    widths: tuple[int, ...], device: torch.device
) -> tuple[Float[Tensor, "c l"], Float[Tensor, "l 3"]]:
    """Means over the channels of each layer, and over the layers of each third, as matrices."""
    there = [i for i, width in enumerate(widths) if width]
    by_layer = torch.block_diag(*(torch.full((widths[i], 1), 1 / widths[i]) for i in there))
    thirds = torch.tensor_split(torch.arange(len(widths)), 3)
    by_third = torch.stack([torch.isin(torch.tensor(there), t) / max(len(t), 1) for t in thirds], 1)
    return by_layer.to(device), by_third.to(device)
