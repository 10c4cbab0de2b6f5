"""Candidate answers to a batch without a gradient: readings of it, their mirrored averages, the mean of all, and what
the universe makes of the same features.

The universe reads an image by itself: every place goes to the points it is most like, and they are of a label. Where
the network's last layers have lost their way and its features have not, that reading is the better half.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adapt.readings import READINGS, Reading, stack, unmirror, use_groups
from ttdg.adapt.signals import Evidence
from ttdg.prior import MorphologyPrior, maps_of

SHARE = 0.5  # of the universe's reading in a candidate that listens to it, in logarithms


@dataclass(frozen=True)
class Candidate:
    name: str
    of: tuple[int, ...]  # the readings it averages
    universe: float = 0.0  # weight of the universe's reading of them, against the network's


@dataclass(frozen=True)
class Read:
    """What one pass over the stacked readings gave, reading by reading."""

    images: Float[Tensor, "b c h w"]
    P: Float[Tensor, "k b l h w"]
    V: Float[Tensor, "k b n y x"]  # projected features
    distance: Float[Tensor, "b f"]


def candidates_of(readings: Sequence[Reading] = READINGS, *, fused: bool = True) -> tuple[Candidate, ...]:
    """Every upright reading alone; every mirrored one averaged with its upright twin; the mean of all; and then, if
    `fused`, each pair of twins once more with the universe's reading."""
    upright = [Candidate(reading.name, (i,)) for i, reading in enumerate(readings) if not reading.mirrored]
    pairs = [
        (reading.name.removesuffix(", mirrored"), (_upright(readings, reading), i))
        for i, reading in enumerate(readings)
        if reading.mirrored
    ]
    twins = [Candidate(f"{name}, both ways", of) for name, of in pairs]
    heard = [Candidate(f"{name}, with the universe", of, SHARE) for name, of in pairs if fused]
    return (*upright, *twins, Candidate("mean of all", tuple(range(len(readings)))), *heard)


@torch.no_grad()
def read(
    network: nn.Module,
    prior: MorphologyPrior,
    images: Float[Tensor, "b c h w"],
    *,
    readings: Sequence[Reading] = READINGS,
    group: int | None = None,
) -> Read:
    """All readings, from one pass over their stack. Images of one `group` (default: all) share their BatchNorm
    statistics; the network is left in that mode. Of the prior only φ is asked."""
    group = group or len(images)
    stacked, rho = stack(images, readings, group)
    mode = use_groups(network, rho)
    logits, maps = maps_of(network, stacked)
    levels = {name: maps[name].float() for name in ("e0", *prior.spec.levels)}
    return Read(
        images,
        unmirror(logits.float().softmax(1), readings),
        unmirror(prior.project(levels, images.shape[2:]), readings),
        _distance(mode.distance, len(readings), group)[: len(images)],
    )


@torch.no_grad()
def weigh(seen: Read, prior: MorphologyPrior, candidates: Sequence[Candidate]) -> Evidence:
    """The candidates' answers, those that listen to the universe after those that do not."""
    logits, projected = [], []
    for candidate in candidates:
        P, V = (torch.stack([x[i] for i in candidate.of]).mean(0) for x in (seen.P, seen.V))
        log_p, V = P.clamp(min=1e-7).log(), F.normalize(V, dim=1)
        if candidate.universe:
            heard = F.interpolate(prior.posterior(V), size=log_p.shape[2:], mode="bilinear")
            log_p = torch.lerp(log_p, heard.clamp(min=1e-4).log(), candidate.universe).log_softmax(1)
        logits.append(log_p)
        projected.append(V)
    plain = sum(candidate.universe == 0 for candidate in candidates)
    return Evidence(torch.stack(logits), torch.stack(projected), seen.distance, seen.images, plain)


def _distance(layers: list[Tensor], readings: int, group: int) -> Float[Tensor, "b f"]:
    """Shift of means and variances in the first, the middle and the last third of the layers, in the source reading."""
    by_layer = torch.stack(layers).unflatten(1, (readings, -1))[:, 0]  # (layers, groups, 2)
    thirds = torch.tensor_split(by_layer, 3)
    return torch.cat([third.mean(0) for third in thirds], 1).repeat_interleave(group, 0)


def _upright(readings: Sequence[Reading], mirrored: Reading) -> int:
    return next(
        i for i, reading in enumerate(readings) if reading.rho == mirrored.rho and not reading.mirrored
    )
