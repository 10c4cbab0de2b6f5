"""How far the carried labels of an image are believed: as far as they put the structures where the network does.

Carried labels correct the boundary of a structure. Where they put it at another place than the network, both are
unreliable, and a network that learns from them can no longer correct itself.
"""

from jaxtyping import Float
from torch import Tensor

from ttdg.metrics import dice, region_probabilities
from ttdg.types import Regions

NONE, FULL = 0.7, 0.85  # Dice of carried labels with the network's: not believed below NONE, fully from FULL


def belief(
    carried: Float[Tensor, "b l y x"], labels: Float[Tensor, "b l y x"], regions: Regions
) -> Float[Tensor, " b"]:
    """Weight in [0, 1] of the carried labels of each image; `labels` are the network's, on the same grid."""
    return ((mutual_dice(carried, labels, regions) - NONE) / (FULL - NONE)).clamp(0, 1)


def mutual_dice(
    one: Float[Tensor, "b l y x"], other: Float[Tensor, "b l y x"], regions: Regions
) -> Float[Tensor, " b"]:
    """Dice of two predictions of each image with each other, averaged over the regions."""
    first, second = (region_probabilities(x.clamp(min=1e-7).log(), regions) for x in (one, other))
    return dice(first, second >= 0.5).mean(1).float()
