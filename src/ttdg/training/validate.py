"""Dice or accuracy on held-out source images."""

from collections.abc import Mapping

import torch
from torch import nn

from ttdg.data import Arrays, Benchmark, normalise
from ttdg.metrics import accuracy, dice, region_masks, region_probabilities


@torch.no_grad()
def validate(
    network: nn.Module,
    held_out: Mapping[str, Arrays],
    benchmark: Benchmark,
    device: torch.device,
    batch: int = 16,
) -> dict[str, float]:
    """Return the mean Dice of each region over the held-out images of all source sites; {} without masks.

    For a classification, return the accuracy.
    """
    network.eval()
    scores = []
    for arrays in held_out.values():
        if arrays.masks is None:
            continue
        for images, masks in zip(arrays.images.split(batch), arrays.masks.split(batch), strict=True):
            logits = network(normalise(images.to(device).float() / 255, benchmark.normalisation)).float()
            labels = masks.to(device).long()
            if benchmark.task == "classification":
                scores.append(accuracy(logits, labels)[:, None])
                continue
            probabilities = region_probabilities(logits, benchmark.regions)
            scores.append(dice(probabilities, region_masks(labels, benchmark.regions)))
    if not scores:
        return {}
    means = torch.cat(scores).mean(0).tolist()
    names = ["accuracy"] if benchmark.task == "classification" else benchmark.regions
    return dict(zip(names, means, strict=True))
