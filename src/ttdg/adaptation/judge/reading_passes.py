"""Forward passes that predict all readings of a batch: one for each size of the images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.adaptation.judge.readings import Reading, stack_readings, unstack_readings, use_groups
from ttdg.adaptation.views import AnswerView
from ttdg.networks import feature_maps
from ttdg.networks.batchnorm.grouped import GroupedMode, LayerWeights, statistics_distance
from ttdg.prior import MorphologyPrior

CPU_PIXELS = (
    4 * 256**2
)  # of a pass on a CPU: larger maps leave its cache, and each costs the system new memory


@dataclass(frozen=True)
class ReadingPredictions:
    """Predictions and features of `k` readings of `b` images."""

    images: Float[Tensor, "b c h w"]
    P: Float[Tensor, "k b l h w"]  # label probabilities
    V: Float[
        Tensor, "k b n y x"
    ]  # features, projected by the prior to unit vectors; n is the last axis in memory
    distance: Float[
        Tensor, "b f"
    ]  # of the BatchNorm statistics of the image's group from those of the source


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
    """Predict all readings over their stacks, one for each size; leaves the network in grouped BatchNorm mode.

    On a GPU a stack is one forward pass. On a CPU it is passed in parts of full groups, with the same result.

    Args:
        network: the source network.
        prior: only its projection φ is used.
        images: normalised images.
        readings: the first one must use source statistics; those of one scale stand together, those of scale 1 first.
        mixing: learned mixing weights, required if a reading uses them.
        group: number of neighbouring images that share BatchNorm statistics; all of them by default.
    """
    group = group or len(images)
    by_size = [
        _readings_at(network, prior, images, list(same), mixing, group)
        for _, same in groupby(readings, key=lambda reading: reading.scale)
    ]
    first, *others = by_size
    if not others:
        return first
    P = [first.P, *(_resized(other.P, images.shape[2:]) for other in others)]
    V = [first.V, *(F.normalize(_resized(other.V, first.V.shape[3:]), dim=2) for other in others)]
    return replace(first, P=torch.cat(P), V=torch.cat(V))


def _readings_at(
    network: nn.Module,
    prior: MorphologyPrior,
    images: Float[Tensor, "b c h w"],
    readings: Sequence[Reading],
    mixing: LayerWeights | None,
    group: int,
) -> ReadingPredictions:
    """Readings of one scale, with the scaled images."""
    images = AnswerView(readings[0].scale)(images)
    stacked, rho = stack_readings(images, readings, group)
    step = max(1, CPU_PIXELS // (group * stacked[0, 0].numel())) if images.is_cpu else len(rho)
    passes = [
        _predict_groups(network, prior, part, use_groups(network, rho[i * step : (i + 1) * step], mixing))
        for i, part in enumerate(stacked.split(step * group))
    ]
    P, V, distance = (
        parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*passes, strict=True)
    )
    return ReadingPredictions(
        images,
        unstack_readings(P, readings),
        unstack_readings(V, readings, width=2).movedim(-1, 2),
        distance[: len(rho) // len(readings)].repeat_interleave(
            group, 0
        ),  # of the groups of the first reading
    )


def _resized(maps: Float[Tensor, "k b c _ _"], size: Sequence[int]) -> Float[Tensor, "k b c y x"]:
    return F.interpolate(maps.flatten(0, 1), tuple(size), mode="bilinear").unflatten(0, maps.shape[:2])


def _predict_groups(
    network: nn.Module, prior: MorphologyPrior, images: Float[Tensor, "n c h w"], mode: GroupedMode
) -> tuple[Float[Tensor, "n l h w"], Float[Tensor, "n y x v"], Float[Tensor, "g f"]]:
    """Probabilities and projected features of one pass, and the distance of the statistics of its groups."""
    if images.is_cpu:
        images = images.contiguous(
            memory_format=torch.channels_last
        )  # its convolutions are faster in this layout
    logits, maps = feature_maps(network, images, prior.spec.levels)
    distance = statistics_distance(mode.seen, len(mode.rho), images.device)
    projected = prior.project(maps, images.shape[2:])
    return logits.float().softmax(1), projected.movedim(1, -1), distance
