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

from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LEARNED, GroupedMode


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
SETS = {"four": tuple(reading for reading in READINGS if reading.rho in (0.0, LEARNED)), "seven": READINGS}


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


def use_groups(network: nn.Module, rho: Sequence[float]) -> GroupedMode:
    """Give every BatchNorm layer of `network` the groups' statistics from now on."""
    mode = GroupedMode(_weights(tuple(rho), next(network.parameters()).device))
    batchnorm.use(network, mode)
    return mode


@cache
def _weights(rho: tuple[float, ...], device: torch.device) -> Float[Tensor, " k"]:
    """Copied to the device once: the host would wait for every copy, and a recorded pass goes on reading this one."""
    return torch.tensor(rho, device=device)
