"""Candidate answers to a batch without a gradient: readings of it, their mirrored averages, and the mean of all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adapt.readings import READINGS, Reading, stack, unmirror, use_groups
from ttdg.adapt.signals import Evidence
from ttdg.prior import MorphologyPrior, maps_of


@dataclass(frozen=True)
class Candidate:
    name: str
    of: tuple[int, ...]  # the readings it averages


def candidates_of(readings: Sequence[Reading] = READINGS) -> tuple[Candidate, ...]:
    """Every upright reading alone; every mirrored one averaged with its upright twin; and the mean of all."""
    upright = [Candidate(reading.name, (i,)) for i, reading in enumerate(readings) if not reading.mirrored]
    twins = [
        Candidate(f"{reading.name.removesuffix(', mirrored')}, both ways", (_upright(readings, reading), i))
        for i, reading in enumerate(readings)
        if reading.mirrored
    ]
    return (*upright, *twins, Candidate("mean of all", tuple(range(len(readings)))))


@torch.no_grad()
def answer(
    network: nn.Module,
    prior: MorphologyPrior,
    images: Float[Tensor, "b c h w"],
    *,
    readings: Sequence[Reading] = READINGS,
    group: int | None = None,
) -> Evidence:
    """All candidates' answers, from one pass over the stacked readings. Images of one `group` (default: all) share
    their BatchNorm statistics; the network is left in that mode."""
    group = group or len(images)
    stacked, rho = stack(images, readings, group)
    mode = use_groups(network, rho)
    logits, maps = maps_of(network, stacked)
    P = unmirror(logits.float().softmax(1), readings)
    levels = {name: maps[name].float() for name in ("e0", *prior.spec.levels)}
    V = unmirror(prior.project(levels, images.shape[2:]), readings)
    options = candidates_of(readings)
    return Evidence(
        logits=torch.stack([P[list(c.of)].mean(0) for c in options]).clamp(min=1e-7).log(),
        projected=torch.stack([F.normalize(V[list(c.of)].mean(0), dim=1) for c in options]),
        distance=_distance(mode.distance, len(readings), group)[: len(images)],
    )


def _distance(layers: list[Tensor], readings: int, group: int) -> Float[Tensor, "b f"]:
    """Shift of means and variances in the first, the middle and the last third of the layers, in the source reading."""
    by_layer = torch.stack(layers).unflatten(1, (readings, -1))[:, 0]  # (layers, groups, 2)
    thirds = torch.tensor_split(by_layer, 3)
    return torch.cat([third.mean(0) for third in thirds], 1).repeat_interleave(group, 0)


def _upright(readings: Sequence[Reading], mirrored: Reading) -> int:
    return next(
        i for i, reading in enumerate(readings) if reading.rho == mirrored.rho and not reading.mirrored
    )
