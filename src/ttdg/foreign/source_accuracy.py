"""How well a network segments its labelled source images: images or masks that do not belong to it are found here."""

import warnings
from collections.abc import Iterable

import torch
from torch import nn

from ttdg.data import Arrays, Benchmark, normalise
from ttdg.errors import TtdgWarning
from ttdg.metrics.regions import region_masks

POOR = 0.2  # Dice; networks are far above it on the images of their own site
MOST = 64  # images of each site
BATCH = 8


def warn_of_poor_answers(network: nn.Module, sites: Iterable[Arrays], benchmark: Benchmark) -> None:
    """Warn if the network misses the structures of the masks, so that nothing useful can be fitted.

    Args:
        network: returns logits of the labels.
        sites: labelled images.
        benchmark: their labels, regions and normalisation.
    """
    poor = {name: dice for name, dice in source_dice(network, sites, benchmark).items() if dice < POOR}
    if poor:
        reached = ", ".join(f"{dice:.2f} for {name}" for name, dice in poor.items())
        warnings.warn(
            f"on the labelled source images the network reaches a Dice of {reached}, so what is fitted will hardly be "
            "useful; check that the images are normalised as the network expects them, the order of their colour "
            "channels (RGB or BGR), the order of the labels, and the weights",
            TtdgWarning,
            stacklevel=5,
        )


@torch.no_grad()
def source_dice(network: nn.Module, sites: Iterable[Arrays], benchmark: Benchmark) -> dict[str, float]:
    """The Dice of each region over the pixels of all images together."""
    weights = next(network.parameters())
    both, each = torch.zeros(len(benchmark.regions)), torch.zeros(len(benchmark.regions))
    for site in sites:
        assert site.masks is not None
        pairs = zip(site.images[:MOST].split(BATCH), site.masks[:MOST].split(BATCH), strict=True)
        for pixels, masks in pairs:
            images = normalise(pixels.to(weights.device).float() / 255, benchmark.normalisation)
            found = region_masks(network(images.to(weights)).argmax(1).cpu(), benchmark.regions)
            truth = region_masks(masks.cpu().long(), benchmark.regions)
            both += (found & truth).sum((0, 2, 3))
            each += found.sum((0, 2, 3)) + truth.sum((0, 2, 3))
    dice = 2 * both / each.clamp(min=1)
    return dict(zip(benchmark.regions, dice.tolist(), strict=True))
