"""A test of whether a site looks like a source site, by the light, colours and sharpness of its images.

Learning a site whose images look like those of a source site gains nothing and can lose, so such a site is left alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.safety.appearance import describe

__all__ = ["HomeStatistics", "describe"]

LIKE_HOME = 0.1  # squared distance, in units of the deviation between images, up to which a site is like home
SAMPLING = 2.0  # the limit grows by this, divided by the number of images: few images determine a mean poorly
SMALLEST = 1e-3  # lower bound of a deviation


@dataclass(frozen=True)
class HomeStatistics:
    """Mean and deviation of the descriptions of the images of each source site."""

    mean: Float[Tensor, "s f"]
    deviation: Float[Tensor, "s f"]

    @classmethod
    def of(cls, sites: Iterable[Float[Tensor, "_n f"]]) -> "HomeStatistics":
        """Statistics of sites, given the descriptions of their images."""
        pairs = [(x.mean(0), x.std(0, correction=0).clamp(min=SMALLEST)) for x in sites]
        return cls(*(torch.stack(values) for values in zip(*pairs, strict=True)))

    def distance(self, mean: Float[Tensor, " f"], images: int) -> Float[Tensor, ""]:
        """Smallest squared distance of a site's mean description from a source site, averaged over the features.

        The expected distance of `images` images of the source site itself is subtracted.
        """
        return ((mean - self.mean) / self.deviation).square().mean(1).min() - 1 / images

    def like_home(self, mean: Float[Tensor, " f"], images: int) -> bool:
        """True if the site cannot be told from a source site, or if there are no images."""
        return images == 0 or bool(self.distance(mean, images) < LIKE_HOME + SAMPLING / images)
