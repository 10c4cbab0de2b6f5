"""BatchNorm over several groups in one batch, and the distance of the groups' statistics from the source.

A group is a set of consecutive images. Each group has its own statistics and its own mixing weight ρ.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.errors import TtdgWarning
from ttdg.networks import batchnorm

Normalise = Callable[[_BatchNorm, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]
LEARNED = -1.0  # as ρ: each layer uses its own mixing weight, fitted at source time
LayerWeights = Mapping[_BatchNorm, Float[Tensor, "1"]]  # a mixing weight ρ for every layer


@dataclass(frozen=True)
class GroupStatistics:
    """Means and variances of the groups at one layer; None if the groups had too few values."""

    layer: _BatchNorm
    mean: Float[Tensor, "k c"] | None = None
    var: Float[Tensor, "k c"] | None = None


@dataclass
class GroupedMode:
    """Normalises each group with (1−ρ)·source + ρ·group means and variances (unbiased, as running variances are).

    Each layer appends the statistics of its input to `seen`.
    """

    rho: Float[Tensor, " k"]  # of each group
    learned: LayerWeights = field(default_factory=dict)  # for groups whose ρ is LEARNED
    seen: list[GroupStatistics] = field(default_factory=list)

    def __call__(self, layer: _BatchNorm, x: Float[Tensor, "kb c *map"]) -> Float[Tensor, "kb c *map"]:
        """Normalise a batch of k groups of b images."""
        if x.numel() // (len(self.rho) * x.shape[1]) < batchnorm.MIN_VALUES:
            self.seen.append(GroupStatistics(layer))
            return batchnorm.EVAL(layer, x)
        by_kernel = x.is_cuda and x.ndim == 4 and layer.affine and not torch.is_grad_enabled()
        fused = fused_kernel() if by_kernel else None
        y, mean, var = (fused or _normalise)(layer, x, self.rho, self.learned.get(layer))
        self.seen.append(GroupStatistics(layer, mean, var))
        return y


@cache
def fused_kernel() -> Normalise | None:
    """The Triton kernel, or None with a warning if Triton is missing or cannot compile it."""
    try:
        from ttdg.networks.batchnorm.grouped_triton import grouped_batch_norm

        layer = nn.BatchNorm2d(1).cuda()
        grouped_batch_norm(layer, torch.ones(1, 1, 4, 4, device="cuda"), torch.ones(1, device="cuda"), None)
    except (ImportError, RuntimeError, OSError) as error:
        warnings.warn(
            f"BatchNorm over groups runs without its fused kernel, which is slower: {error}",
            TtdgWarning,
            stacklevel=2,
        )
        return None
    return grouped_batch_norm


def _normalise(
    layer: _BatchNorm, x: Tensor, rho: Float[Tensor, " k"], learned: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised batch, and means and variances of its groups, which are constants for the gradient."""
    mean, var = batchnorm.running_statistics(layer)
    m, v = moments(x.detach(), len(rho))
    share = rho[:, None] if learned is None else torch.where(rho[:, None] == LEARNED, learned, rho[:, None])
    weight, bias = (layer.weight, layer.bias) if layer.affine else (1.0, 0.0)
    scale = weight / (torch.lerp(var.expand_as(v), v, share) + layer.eps).sqrt()
    shift = bias - torch.lerp(mean.expand_as(m), m, share) * scale
    if (
        x.is_cpu and len(rho) == 1 and torch.is_grad_enabled()
    ):  # one kernel computes the gradients of x, scale and shift
        zero, one = torch.zeros_like(mean), torch.ones_like(var)
        return torch.batch_norm(x, scale[0], shift[0], zero, one, False, 0.0, 0.0, False), m, v
    # Shift and scale are repeated for each image: with a view of `x` by groups, the gradient of an in-place ReLU would
    # make several copies.
    places = (..., *[None] * (x.ndim - 2))
    shift, scale = (of.repeat_interleave(len(x) // len(rho), 0)[places] for of in (shift, scale))
    return torch.addcmul(shift, x, scale), m, v


def moments(x: Float[Tensor, "kb c *map"], groups: int) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]]:
    """Means and unbiased variances of each group.

    On a GPU they are computed from the statistics of each image, because reducing only the last axes is several times
    faster. On a CPU the kernel that updates running statistics is called for each group, which is four times as fast as
    `torch.var_mean`.
    """
    if x.is_cpu:
        mean, var = x.new_zeros(2, groups, x.shape[1])
        for group, m, v in zip(x.chunk(groups), mean, var, strict=True):
            torch.batch_norm_update_stats(group, m, v, 1.0)
        return mean, var
    n = x[0, 0].numel()
    v, m = (
        moment.unflatten(0, (groups, -1))
        for moment in torch.var_mean(x, dim=tuple(range(2, x.ndim)), correction=0)
    )
    mean, total = m.mean(1), n * m.shape[1]
    spread = (v + (m - mean[:, None]).square()).mean(1)
    return mean, spread * (total / max(total - 1, 1))


def statistics_distance(
    seen: Sequence[GroupStatistics], groups: int, device: torch.device | str = "cpu"
) -> Float[Tensor, "g f"]:
    """Distance of the statistics of the first `groups` groups from the source, for three thirds of the layers.

    For each third of the layers there are two features: log(1 + squared shift of the means, in units of the source
    variance), and the absolute log ratio of the variances. A layer without group statistics counts as 0. A network
    without layers has no features.
    """
    valid = [s for s in seen if s.mean is not None]
    if not valid:
        return torch.zeros(groups, 6 if seen else 0, device=device)
    mean, var = (torch.cat([getattr(s, name)[:groups] for s in valid], 1) for name in ("mean", "var"))
    source = (batchnorm.running_statistics(s.layer) for s in valid)
    source_mean, source_var = (torch.cat(buffers) for buffers in zip(*source, strict=True))
    source_var = source_var + valid[0].layer.eps
    widths = tuple(0 if s.mean is None else s.mean.shape[1] for s in seen)
    by_layer, by_third = _shares(widths, mean.device)
    shift = ((mean - source_mean).square() / source_var) @ by_layer
    ratio = (var / source_var).clamp(min=1e-6).log().abs() @ by_layer
    return (torch.stack([shift.log1p(), ratio]) @ by_third).movedim(0, 2).flatten(1)


@cache
def _shares(
    widths: tuple[int, ...], device: torch.device
) -> tuple[Float[Tensor, "c l"], Float[Tensor, "l 3"]]:
    """Matrices that average over the channels of each layer, and over the layers of each third."""
    valid = [i for i, width in enumerate(widths) if width]
    by_layer = torch.block_diag(
        *(torch.full((widths[i], 1), 1 / widths[i], dtype=torch.float32) for i in valid)
    )
    thirds = torch.tensor_split(torch.arange(len(widths)), 3)
    by_third = torch.stack([torch.isin(torch.tensor(valid), t).float() / max(len(t), 1) for t in thirds], 1)
    return by_layer.to(device), by_third.to(device)
