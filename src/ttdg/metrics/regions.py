"""Scored regions as unions of labels, e.g. disc = {rim, cup}."""

from functools import reduce

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from ttdg.errors import UserError
from ttdg.types import Regions


def region_probabilities(logits: Float[Tensor, "b c h w"], regions: Regions) -> Float[Tensor, "b r h w"]:
    """Probability of each region at each pixel: the softmax of the logits, summed over the region's labels."""
    for name, labels in regions.items():
        if not set(labels) <= set(range(logits.shape[1])):
            raise UserError(
                f"region {name!r} consists of the labels {labels}, but the network predicts labels 0 to "
                f"{logits.shape[1] - 1}; correct the regions of the benchmark"
            )
    probabilities = logits.softmax(1, dtype=torch.float32)
    sums = [  # one slice per label: a list of labels as index would be copied to the device, which blocks the host
        reduce(torch.add, [probabilities[:, label] for label in labels]) for labels in regions.values()
    ]
    return torch.stack(sums, dim=1).clamp_(max=1)  # rounding may exceed 1 slightly


def region_masks(labels: Integer[Tensor, "b h w"], regions: Regions) -> Bool[Tensor, "b r h w"]:
    """Mask of each region: the pixels that have one of its labels."""
    return torch.stack(
        [reduce(torch.logical_or, [labels == value for value in values]) for values in regions.values()],
        dim=1,
    )
