"""Whether a network may be averaged over several sizes of an image, measured on held-out source images.

The mean over three sizes and mirror images helps most networks. A network that was trained briefly can fail at another
size, and the mean with it; some networks accept one size only. Both show on images of the source sites, whose labels
are known.
"""

import copy
import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.views import VIEW_SETS
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.networks import batchnorm

IMAGES = 64  # of each site, at most
BATCH = 8
LARGEST_LOSS = 1.0  # Dice points that sizes may lose; a smaller loss may be chance


def tolerates_sizes(gain: float) -> bool:
    """True unless sizes lose clearly; `gain` is that of `size_gain`."""
    return gain > -LARGEST_LOSS


@torch.no_grad()
def size_gain(network: nn.Module, held_out: Mapping[str, Arrays], benchmark: Benchmark) -> float:
    """Dice points that two more sizes add to the mean over the image and its mirror image, averaged over the sites.

    Minus infinity if the network raises an error at another size.
    """
    network = copy.deepcopy(network).eval()
    batchnorm.use_if_any(network, batchnorm.EVAL)
    gains = []
    for site in held_out.values():
        if site.cases:
            try:
                gains.append(_site_gain(network, site, benchmark))
            except (RuntimeError, ValueError, AssertionError):
                return -math.inf
    return 100 * sum(gains) / len(gains)


def _site_gain(network: nn.Module, site: Arrays, benchmark: Benchmark) -> float:
    """The gain at images that are spread over the site."""
    assert site.masks is not None
    device = next(network.parameters()).device
    rows = torch.linspace(0, len(site.cases) - 1, min(IMAGES, len(site.cases))).long()
    gains = []
    for part in rows.split(BATCH):
        images = normalise(site.images[part].to(device).float() / 255, benchmark.normalisation)
        truth = region_masks(site.masks[part].to(device).long(), benchmark.regions)
        P = _predictions(network, images)
        flips, sizes = (
            dice(region_probabilities(mean.clamp(min=1e-7).log(), benchmark.regions), truth).mean(1)
            for mean in (P[: len(VIEW_SETS["flips"])].mean(0), P.mean(0))
        )
        gains.append(sizes - flips)
    return float(torch.cat(gains).mean())


def _predictions(network: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "v b l h w"]:
    """Probabilities of the views "scales", which begin with the views "flips"."""
    answers = (view.inverse(network(view(images)), images.shape[2:]) for view in VIEW_SETS["scales"])
    return torch.stack([losses.probabilities(logits.float(), "softmax") for logits in answers])
