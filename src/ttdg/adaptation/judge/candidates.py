"""Candidates: the predictions among which the judge chooses, all from one forward pass for each size of the images.

A candidate is one reading, the average of a reading and its mirrored twin, the average of the source's readings at
three sizes, or the average of all readings. A *fused*
candidate also averages in the universe's own segmentation of the same features, in which every grid cell takes the
label of the universe points most similar to its feature. This segmentation is the better one where the decoder fails
although the features are intact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.judge.reading_passes import ReadingPredictions
from ttdg.adaptation.judge.readings import Reading
from ttdg.prior import MorphologyPrior
from ttdg.prior.universe_signals import label_weights

THREE_SIZES = "source, three sizes"  # name of the average over sizes and mirror images
UNIVERSE_WEIGHT = 0.5  # of the universe's log-probabilities in a fused candidate
WORDS = {
    "source": "the source model",
    "mix .1": "the source model with a tenth of the batch's statistics",
    "mix .5": "the source model with half of the batch's statistics",
    "batch": "the source model with the statistics of the batch",
    "mix learned": "the source model with statistics of the batch, as much of them as was fitted for each layer",
    THREE_SIZES: "the source model, averaged over three sizes of the image and its mirror image",
    "mean of all": "the mean of all readings of the source model",
}
ENDS = {
    ", both ways": ", averaged over the image and its mirror image",
    ", with the universe": ", averaged with the universe's own segmentation",
}


@dataclass(frozen=True)
class Candidate:
    """A prediction made from one or more readings."""

    name: str
    readings: tuple[int, ...]  # indices of the readings that are averaged
    fused: bool = False  # True if the universe's segmentation is averaged in


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
    weight: Float[Tensor, "k b l y x"] | None = (
        None  # `label_weights` of `projected`, if a candidate is fused
    )


def candidates_of(readings: Sequence[Reading], *, fused: bool = True) -> tuple[Candidate, ...]:
    """List the candidates of a set of readings.

    The order is: every upright reading; the average of each mirrored reading with its upright twin; the average of the
    source's readings at all sizes, if there are several sizes; the average of all readings, if there are more than
    two; and, if `fused`, the average of each pair of twins with the universe's segmentation. Readings at other sizes
    are used in averages alone.
    """
    at_size = [(i, reading) for i, reading in enumerate(readings) if reading.scale == 1.0]
    upright = [Candidate(reading.name, (i,)) for i, reading in at_size if not reading.mirrored]
    pairs = [
        (reading.name.removesuffix(", mirrored"), (_upright_twin(readings, reading), i))
        for i, reading in at_size
        if reading.mirrored
    ]
    averages = [Candidate(f"{name}, both ways", pair) for name, pair in pairs]
    if len(at_size) < len(readings):
        source = tuple(i for i, reading in enumerate(readings) if reading.rho == 0.0)
        averages.append(Candidate(THREE_SIZES, source))
    mean = [Candidate("mean of all", tuple(range(len(readings))))] if len(readings) > 2 else []
    with_universe = [Candidate(f"{name}, with the universe", pair, True) for name, pair in pairs if fused]
    return (*upright, *averages, *mean, *with_universe)


def describe_candidate(name: str) -> str:
    """Return what a candidate is, in words; an unknown name is returned as it is."""
    for end, words in ENDS.items():
        if name.endswith(end):
            return WORDS.get(name.removesuffix(end), name.removesuffix(end)) + words
    return WORDS.get(name, name)


@torch.no_grad()
def predict_candidates(
    predictions: ReadingPredictions, prior: MorphologyPrior, candidates: Sequence[Candidate]
) -> CandidatePredictions:
    """Average the readings of every candidate; fused candidates must come last."""
    return fuse(average_readings(predictions, candidates), prior, candidates)


@torch.no_grad()
def average_readings(
    predictions: ReadingPredictions, candidates: Sequence[Candidate]
) -> CandidatePredictions:
    """The candidates without the universe: fused ones have the probabilities of their readings alone."""
    P = torch.stack([_mean(predictions.P, candidate.readings) for candidate in candidates])
    V = predictions.V.movedim(2, -1)
    units = {
        rows: V[rows[0]] if len(rows) == 1 else F.normalize(_mean(V, rows), dim=-1)
        for rows in dict.fromkeys(candidate.readings for candidate in candidates)
    }
    projected = torch.stack([units[candidate.readings] for candidate in candidates]).movedim(-1, 2)
    unfused = sum(not candidate.fused for candidate in candidates)
    log_p = P.clamp_(min=1e-7).log_()
    return CandidatePredictions(log_p, projected, predictions.distance, predictions.images, unfused)


@torch.no_grad()
def fuse(
    averaged: CandidatePredictions, prior: MorphologyPrior, candidates: Sequence[Candidate]
) -> CandidatePredictions:
    """Average the universe's segmentation into the fused candidates of `average_readings`."""
    log_p, unfused = averaged.logits, averaged.unfused
    if unfused == len(candidates):
        return averaged
    weight = candidate_weights(averaged.projected, prior, candidates)
    posterior = (weight[unfused:] / weight[unfused:].sum(2, keepdim=True)).flatten(0, 1)
    universe = F.interpolate(posterior, size=log_p.shape[3:], mode="bilinear").clamp_(min=1e-4).log_()
    both = torch.lerp(log_p[unfused:].flatten(0, 1), universe, UNIVERSE_WEIGHT).log_softmax(1)
    log_p = torch.cat([log_p[:unfused], both.unflatten(0, (-1, log_p.shape[1]))])
    return replace(averaged, logits=log_p, weight=weight)


def candidate_weights(
    projected: Float[Tensor, "k b n y x"], prior: MorphologyPrior, candidates: Sequence[Candidate]
) -> Float[Tensor, "k b l y x"]:
    """`label_weights` of all candidates; candidates of the same readings have the same features, and share them."""
    first: dict[tuple[int, ...], int] = {}
    for number, candidate in enumerate(candidates):
        first.setdefault(candidate.readings, number)
    distinct = list(first.values())
    if distinct == list(range(len(distinct))):  # a view needs no copy
        weight = label_weights(prior, projected[: len(distinct)])
    else:
        weight = label_weights(prior, torch.stack([projected[i] for i in distinct]))
    rows = [distinct.index(first[candidate.readings]) for candidate in candidates]
    return torch.stack([weight[row] for row in rows])


def _mean(x: Float[Tensor, "k *rest"], rows: tuple[int, ...]) -> Float[Tensor, "*rest"]:
    """Mean of some rows, by sums of two: reductions over the first axis are several times slower on a CPU."""
    return x[rows[0]] if len(rows) == 1 else reduce(torch.add, [x[i] for i in rows]).div_(len(rows))


def _upright_twin(readings: Sequence[Reading], mirrored: Reading) -> int:
    twin = (mirrored.rho, False, mirrored.scale)
    return next(i for i, r in enumerate(readings) if (r.rho, r.mirrored, r.scale) == twin)
