"""From labels to the regions that are scored, e.g. disc = {rim, cup}."""

from functools import reduce

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from ttdg.errors import UserError
from ttdg.types import Regions


def region_probabilities(logits: Float[Tensor, "b c h w"], regions: Regions) -> Float[Tensor, "b r h w"]:
    """How probable each region is at each pixel: the softmax, summed over the labels it unites."""
    for name, labels in regions.items():
        if not set(labels) <= set(range(logits.shape[1])):
            known = f"labels 0 to {logits.shape[1] - 1}"
            raise UserError(
                f"region {name!r} unites labels {labels}, but the network answers {known}; mend the regions"
            )
    probabilities = logits.softmax(1, dtype=torch.float32)
    united = [  # slices: a list of labels as index is copied to the device, which the host would wait for
        reduce(torch.add, [probabilities[:, label] for label in labels]) for labels in regions.values()
    ]
    return torch.stack(united, dim=1).clamp_(max=1)  # rounding may sum to a little more


def region_masks(labels: Integer[Tensor, "b h w"], regions: Regions) -> Bool[Tensor, "b r h w"]:
    """Where each region is."""
    return torch.stack(
        [reduce(torch.logical_or, [labels == label for label in united]) for united in regions.values()],
        dim=1,
    )
