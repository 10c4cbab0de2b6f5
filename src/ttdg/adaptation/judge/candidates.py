"""Candidates: the predictions among which the judge chooses, all from one forward pass.

A candidate is one reading, the average of a reading and its mirrored twin, or the average of all readings. A *fused*
candidate also averages in the universe's own segmentation of the same features, in which every grid cell takes the
label of the universe points most similar to its feature. This segmentation is the better one where the decoder fails
although the features are intact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation.judge.readings import Reading, stack_readings, unstack_readings, use_groups
from ttdg.networks import feature_maps
from ttdg.networks.batchnorm.grouped import LayerWeights, statistics_distance
from ttdg.prior import MorphologyPrior

UNIVERSE_WEIGHT = 0.5  # of the universe's log-probabilities in a fused candidate


@dataclass(frozen=True)
class Candidate:
    """A prediction made from one or more readings."""

    name: str
    readings: tuple[int, ...]  # indices of the readings that are averaged
    fused: bool = False  # True if the universe's segmentation is averaged in


@dataclass(frozen=True)
class ReadingPredictions:
    """Predictions and features of `k` readings of `b` images."""

    images: Float[Tensor, "b c h w"]
    P: Float[Tensor, "k b l h w"]  # label probabilities
    V: Float[Tensor, "k b n y x"]  # features, projected by the prior
    distance: Float[
        Tensor, "b f"
    ]  # of the BatchNorm statistics of the image's group from those of the source


@dataclass(frozen=True)
class CandidatePredictions:
    """Predictions of `k` candidates for `b` images, with everything that the signals are computed from."""

    logits: Float[Tensor, "k b l h w"]  # log-probabilities
    projected: Float[Tensor, "k b n y x"]  # unit feature vectors of the readings behind each candidate
    distance: Float[
        Tensor, "b f"
    ]  # of the BatchNorm statistics of the image's group from those of the source
    images: Float[Tensor, "b c h w"]
    unfused: int  # the first `unfused` candidates do not use the universe


def candidates_of(readings: Sequence[Reading], *, fused: bool = True) -> tuple[Candidate, ...]:
    """List the candidates of a set of readings.

    The order is: every upright reading; the average of each mirrored reading with its upright twin; the average of
    all readings; and, if `fused`, the average of each pair of twins with the universe's segmentation.
    """
    upright = [Candidate(reading.name, (i,)) for i, reading in enumerate(readings) if not reading.mirrored]
    pairs = [
        (reading.name.removesuffix(", mirrored"), (_upright_twin(readings, reading), i))
        for i, reading in enumerate(readings)
        if reading.mirrored
    ]
    averages = [Candidate(f"{name}, both ways", pair) for name, pair in pairs]
    mean = Candidate("mean of all", tuple(range(len(readings))))
    with_universe = [Candidate(f"{name}, with the universe", pair, True) for name, pair in pairs if fused]
    return (*upright, *averages, mean, *with_universe)


@torch.no_grad()
def predict_readings(
    network: nn.Module,
    prior: MorphologyPrior,
    images: Float[Tensor, "b c h w"],
    *,
    readings: Sequence[Reading],
    mixing: LayerWeights | None = None,
    group: int | None = None,
) -> ReadingPredictions:
    """Predict all readings in one forward pass over their stack; leaves the network in grouped BatchNorm mode.

    Args:
        network: the source network.
        prior: only its projection φ is used.
        images: normalised images.
        readings: the first one must use source statistics.
        mixing: learned mixing weights, required if a reading uses them.
        group: number of neighbouring images that share BatchNorm statistics; all of them by default.
    """
    group = group or len(images)
    stacked, rho = stack_readings(images, readings, group)
    mode = use_groups(network, rho, mixing)
    logits, maps = feature_maps(network, stacked)
    distance = statistics_distance(mode.seen, len(rho) // len(readings))  # of the groups of the first reading
    levels = {name: maps[name].float() for name in ("e0", *prior.spec.levels)}
    projected = prior.project(levels, images.shape[2:])
    return ReadingPredictions(
        images,
        unstack_readings(logits.float().softmax(1), readings),
        unstack_readings(projected, readings),
        distance.repeat_interleave(group, 0)[: len(images)],
    )


@torch.no_grad()
def predict_candidates(
    predictions: ReadingPredictions, prior: MorphologyPrior, candidates: Sequence[Candidate]
) -> CandidatePredictions:
    """Average the readings of every candidate; fused candidates must come last."""
    P, V = (
        torch.stack([_mean(x, candidate.readings) for candidate in candidates])
        for x in (predictions.P, predictions.V)
    )
    log_p, V = P.clamp(min=1e-7).log(), F.normalize(V, dim=2)
    unfused = sum(not candidate.fused for candidate in candidates)
    if unfused < len(candidates):
        posterior = prior.posterior(V[unfused:].flatten(0, 1))
        universe = F.interpolate(posterior, size=P.shape[3:], mode="bilinear").clamp(min=1e-4).log()
        both = torch.lerp(log_p[unfused:].flatten(0, 1), universe, UNIVERSE_WEIGHT).log_softmax(1)
        log_p = torch.cat([log_p[:unfused], both.unflatten(0, (-1, P.shape[1]))])
    return CandidatePredictions(log_p, V, predictions.distance, predictions.images, unfused)


def _mean(x: Float[Tensor, "k *rest"], rows: tuple[int, ...]) -> Float[Tensor, "*rest"]:
    """Mean of some rows. Integer indices are used because a list of indices would be copied to the device."""
    if len(rows) == len(x):
        return x.mean(0)
    return x[rows[0]] if len(rows) == 1 else torch.stack([x[i] for i in rows]).mean(0)


def _upright_twin(readings: Sequence[Reading], mirrored: Reading) -> int:
    return next(
        i for i, reading in enumerate(readings) if reading.rho == mirrored.rho and not reading.mirrored
    )
