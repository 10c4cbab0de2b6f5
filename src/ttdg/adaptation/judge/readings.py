"""Readings: predictions of one batch under several BatchNorm statistics, mirrored or not, in one pass for each size.

A reading is a copy of the batch with a mixing weight ρ: its BatchNorm layers use (1−ρ) · source statistics +
ρ · batch statistics. The copies are stacked along the batch axis, so that k readings of b images can be one pass over
k·b images instead of k passes. Statistics are computed separately for each reading, and for each group of images
that were acquired together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation.views import VIEW_SETS
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.grouped import LEARNED, GroupedMode, LayerWeights


@dataclass(frozen=True)
class Reading:
    """One way to predict a batch."""

    name: str
    rho: float  # weight of the batch statistics, or LEARNED for the fitted weight of each layer
    mirrored: bool = False  # True if the images are flipped horizontally, and the prediction is flipped back
    scale: float = 1.0  # of the images; the prediction is resized to the size of the images


READINGS = (
    Reading("source", 0.0),
    Reading("mix .1", 0.1),
    Reading("mix .5", 0.5),
    Reading("batch", 1.0),
    Reading("mix learned", LEARNED),
    Reading("source, mirrored", 0.0, True),
    Reading("mix learned, mirrored", LEARNED, True),
)
FOUR = tuple(reading for reading in READINGS if reading.rho in (0.0, LEARNED))
OTHER_SIZES = tuple(
    Reading(
        f"source at {view.scale:g}{', mirrored' if view.mirrored else ''}", 0.0, view.mirrored, view.scale
    )
    for view in VIEW_SETS["scales"]
    if view.scale != 1.0
)
READING_SETS = {  # readings of one scale stand together, those of scale 1 first
    "two": tuple(reading for reading in READINGS if reading.rho == 0.0),  # of a network without BatchNorm
    "four": FOUR,
    "seven": READINGS,
    "eight": (*FOUR, *OTHER_SIZES),
}


def stack_readings(
    images: Float[Tensor, "b c h w"], readings: Sequence[Reading], group: int
) -> tuple[Float[Tensor, "kb c h w"], list[float]]:
    """Stack one copy of the images for each reading, and list ρ of every group of `group` images in the stack.

    The images have the scale of the readings already.
    """
    copies = [images.flip(3) if reading.mirrored else images for reading in readings]
    groups = -(-len(images) // group)
    return torch.cat(copies), [reading.rho for reading in readings for _ in range(groups)]


def unstack_readings(
    stacked: Float[Tensor, "kb *map"], readings: Sequence[Reading], *, width: int = 3
) -> Float[Tensor, "k b *map"]:
    """Split maps of a stack by reading, and flip the maps of mirrored readings back; `width` is the axis to flip."""
    maps = stacked.unflatten(0, (len(readings), -1))
    return torch.stack([m.flip(width) if r.mirrored else m for m, r in zip(maps, readings, strict=True)])


def use_groups(network: nn.Module, rho: Sequence[float], learned: LayerWeights | None = None) -> GroupedMode:
    """Let every BatchNorm layer of `network` normalise a stack of groups, each with its own mixing weight.

    Args:
        network: changed in place, until another mode is set.
        rho: weight of the batch statistics of each group, or LEARNED.
        learned: weights of the layers, required where an entry of `rho` is LEARNED. A recorded CUDA graph reads these
            tensors at every replay, so the caller must keep them alive.

    Returns:
        The mode, which collects the group statistics of the next forward pass.
    """
    if learned is None and LEARNED in rho:
        raise ValueError("readings with learned mixing weights need the weights of the layers")
    mode = GroupedMode(_device_weights(tuple(rho), next(network.parameters()).device), learned or {})
    batchnorm.use_if_any(network, mode)
    return mode


@cache
def _device_weights(rho: tuple[float, ...], device: torch.device) -> Float[Tensor, " k"]:
    """ρ on the device. Cached: a copy blocks the host, and recorded CUDA graphs read the tensor at every replay."""
    return torch.tensor(rho, dtype=torch.float32, device=device)
