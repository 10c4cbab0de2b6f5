"""Several readings of one batch, in one forward pass: other mixtures of BatchNorm statistics, and mirrored images.

A reading is a copy of the batch with its own mixing weight ρ between the source's statistics and the batch's. Stacked
along the batch they cost one pass over k·b images instead of k passes over b, with the statistics of each reading (and
of each group of images that came together) kept apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adapt import batchnorm

LEARNED = -1.0  # as ρ: each layer's own weight, fitted at source time


@dataclass(frozen=True)
class Reading:
    name: str
    rho: float  # weight of the batch's statistics, or LEARNED
    mirrored: bool = False


READINGS = (
    Reading("source", 0.0),
    Reading("mix .1", 0.1),
    Reading("mix .5", 0.5),
    Reading("batch", 1.0),
    Reading("mix learned", LEARNED),
    Reading("source, mirrored", 0.0, True),
    Reading("mix learned, mirrored", LEARNED, True),
)
SETS = {"seven": READINGS, "four": tuple(reading for reading in READINGS if reading.rho in (0.0, LEARNED))}


@dataclass
class Grouped:
    """BatchNorm over a stack of groups, each with its own ρ: (1−ρ)·source + ρ·group, for means and variances.

    `distance`, filled during the pass, says how far the groups' statistics lie from the source's, layer by layer.
    """

    rho: Float[Tensor, " k"]
    distance: list[Tensor]

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        mean, var = batchnorm.running(layer)
        groups = x.unflatten(0, (len(self.rho), -1))
        if groups[0].numel() // x.shape[1] < batchnorm.FEWEST:
            self.distance.append(x.new_zeros(len(self.rho), 2))
            return batchnorm.EVAL(layer, x)
        v, m = _moments(x.detach(), len(self.rho))
        rho = self._weight(layer)
        self.distance.append(_far(m - mean, v, var + layer.eps))
        scale = layer.weight / (torch.lerp(var.expand_as(v), v, rho) + layer.eps).sqrt()
        shift = layer.bias - torch.lerp(mean.expand_as(m), m, rho) * scale
        wide = (slice(None), None, slice(None), None, None)
        return torch.addcmul(shift[wide], groups, scale[wide]).flatten(0, 1)

    def _weight(self, layer: _BatchNorm) -> Tensor:
        rho = self.rho[:, None]
        own = getattr(layer, "own_rho", None)
        return rho if own is None else torch.where(rho == LEARNED, own, rho)


def stack(
    images: Float[Tensor, "b c h w"], readings: Sequence[Reading], group: int
) -> tuple[Float[Tensor, "kb c h w"], list[float]]:
    """The readings of every group of `group` neighbours, reading by reading, and the ρ of each group in that order."""
    copies = [images.flip(3) if reading.mirrored else images for reading in readings]
    groups = -(-len(images) // group)
    return torch.cat(copies), [reading.rho for reading in readings for _ in range(groups)]


def unmirror(stacked: Float[Tensor, "kb c h w"], readings: Sequence[Reading]) -> Float[Tensor, "k b c h w"]:
    """What the network made of the stack, reading by reading, with mirrored ones turned back."""
    maps = stacked.unflatten(0, (len(readings), -1))
    return torch.stack([m.flip(3) if r.mirrored else m for m, r in zip(maps, readings, strict=True)])


def use_groups(network: nn.Module, rho: Sequence[float]) -> Grouped:
    """Give every BatchNorm layer of `network` the groups' statistics from now on."""
    mode = Grouped(_weights(tuple(rho), next(network.parameters()).device), [])
    batchnorm.use(network, mode)
    return mode


@cache
def _weights(rho: tuple[float, ...], device: torch.device) -> Float[Tensor, " k"]:
    """Copied to the device once: the host would wait for every copy, and a recorded pass goes on reading this one."""
    return torch.tensor(rho, device=device)


def _moments(x: Float[Tensor, "kb c h w"], groups: int) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]]:
    """Variances (unbiased, as the running ones are) and means of each group, from those of its images: reducing along
    the last axes alone is several times faster."""
    n = x[0, 0].numel()
    v, m = (moment.unflatten(0, (groups, -1)) for moment in torch.var_mean(x, dim=(2, 3), correction=0))
    mean, total = m.mean(1), n * m.shape[1]
    spread = (v + (m - mean[:, None]).square()).mean(1)
    return spread * (total / max(total - 1, 1)), mean


def _far(difference: Tensor, v: Tensor, var: Tensor) -> Float[Tensor, "k 2"]:
    """Squared shift of the means in units of the source's variance, and the log ratio of variances."""
    ratio = (v / var).clamp(min=1e-6).log().abs()
    return torch.stack([(difference.square() / var).mean(1).log1p(), ratio.mean(1)], 1)
