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

from ttdg.adaptation.judge.readings import Reading, stack, unmirror, use_groups
from ttdg.adaptation.judge.signals import Evidence
from ttdg.networks.batchnorm.grouped import distance
from ttdg.prior import MorphologyPrior, feature_maps

SHARE = 0.5  # of the universe's reading in a candidate that listens to it, in logarithms


@dataclass(frozen=True)
class Candidate:
    name: str
    of: tuple[int, ...]  # the readings it averages
    heard: bool = False  # is the universe's reading of them averaged in?


@dataclass(frozen=True)
class BatchReadings:
    """What one pass over the stacked readings gave, reading by reading."""

    images: Float[Tensor, "b c h w"]
    P: Float[Tensor, "k b l h w"]
    V: Float[Tensor, "k b n y x"]  # projected features
    distance: Float[Tensor, "b f"]


def candidates_of(readings: Sequence[Reading], *, fused: bool = True) -> tuple[Candidate, ...]:
    """Every upright reading alone; every mirrored one averaged with its upright twin; the mean of all; and then, if
    `fused`, each pair of twins once more with the universe's reading."""
    upright = [Candidate(reading.name, (i,)) for i, reading in enumerate(readings) if not reading.mirrored]
    pairs = [
        (reading.name.removesuffix(", mirrored"), (_upright(readings, reading), i))
        for i, reading in enumerate(readings)
        if reading.mirrored
    ]
    twins = [Candidate(f"{name}, both ways", of) for name, of in pairs]
    heard = [Candidate(f"{name}, with the universe", of, True) for name, of in pairs if fused]
    return (*upright, *twins, Candidate("mean of all", tuple(range(len(readings)))), *heard)


@torch.no_grad()
def read_batch(
    network: nn.Module,
    prior: MorphologyPrior,
    images: Float[Tensor, "b c h w"],
    *,
    readings: Sequence[Reading],
    group: int | None = None,
) -> BatchReadings:
    """All readings, from one pass over their stack. Images of one `group` (default: all) share their BatchNorm
    statistics; the network is left in that mode. Of the prior only φ is asked."""
    group = group or len(images)
    stacked, rho = stack(images, readings, group)
    mode = use_groups(network, rho)
    logits, maps = feature_maps(network, stacked)
    far = distance(mode.seen, len(rho) // len(readings))  # of the first reading, the source's
    levels = {name: maps[name].float() for name in ("e0", *prior.spec.levels)}
    return BatchReadings(
        images,
        unmirror(logits.float().softmax(1), readings),
        unmirror(prior.project(levels, images.shape[2:]), readings),
        far.repeat_interleave(group, 0)[: len(images)],
    )


@torch.no_grad()
def weigh(seen: BatchReadings, prior: MorphologyPrior, candidates: Sequence[Candidate]) -> Evidence:
    """The candidates' answers, those that listen to the universe after those that do not."""
    P, V = (torch.stack([_mean(x, candidate.of) for candidate in candidates]) for x in (seen.P, seen.V))
    log_p, V = P.clamp(min=1e-7).log(), F.normalize(V, dim=2)
    plain = sum(not candidate.heard for candidate in candidates)
    if plain < len(candidates):
        posterior = prior.posterior(V[plain:].flatten(0, 1))
        heard = F.interpolate(posterior, size=P.shape[3:], mode="bilinear").clamp(min=1e-4).log()
        both = torch.lerp(log_p[plain:].flatten(0, 1), heard, SHARE).log_softmax(1)
        log_p = torch.cat([log_p[:plain], both.unflatten(0, (-1, P.shape[1]))])
    return Evidence(log_p, V, seen.distance, seen.images, plain)


def _mean(x: Float[Tensor, "k *rest"], of: tuple[int, ...]) -> Float[Tensor, "*rest"]:
    if len(of) == len(x):
        return x.mean(0)
    return x[of[0]] if len(of) == 1 else torch.stack([x[i] for i in of]).mean(0)


def _upright(readings: Sequence[Reading], mirrored: Reading) -> int:
    return next(
        i for i, reading in enumerate(readings) if reading.rho == mirrored.rho and not reading.mirrored
    )
