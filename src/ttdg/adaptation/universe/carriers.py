"""Carriers: how labels of sure images of a site reach the other images.

Method "universe" carries them through the universe (`ttdg.adaptation.universe.carried_labels`). Its controls are in
`ttdg.adaptation.universe.carrier_controls`.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.adaptation.universe.carried_labels import SitePoints, SiteSums, carry, source_points
from ttdg.adaptation.universe.source_reading import Features
from ttdg.prior import MorphologyPrior

ITERATIONS = 2  # of the estimate of the site's points

CellLabels = Float[Tensor, "b l y x"]  # distributions over the labels, on the node grid


class CellBatch(NamedTuple):
    """The cells of a batch of images."""

    features: Features
    labels: CellLabels
    certainty: Float[Tensor, " b"]  # of each image; 0 for an image that is not sure


SiteCells = Callable[[], Iterable[CellBatch]]  # called once for each pass over the images of a site


@runtime_checkable
class Carrier(Protocol):
    """Takes labels from sure images of a site, and gives them to cells of any image."""

    def refresh(self, site: SiteCells) -> None:
        """Replace what is known of the site by the cells of its sure images."""
        ...

    def carry(self, features: Features) -> CellLabels:
        """The label that every cell takes."""
        ...

    def reset(self) -> None:
        """Forget the site."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that `refresh` changes in place, by name."""
        ...


class UniverseCarrier(Carrier):
    """Carries labels along the matching of all images to one universe."""

    def __init__(self, prior: MorphologyPrior) -> None:
        self.tau, self.source = prior.spec.tau, source_points(prior)
        self.site = SitePoints(self.source.points.clone(), self.source.labels.clone())

    @torch.no_grad()
    def refresh(self, site: SiteCells) -> None:
        """Estimate the points of the site, starting from those of the source."""
        found = self.source
        for _ in range(ITERATIONS):
            sums = SiteSums(found, self.source, self.tau)
            for batch in site():
                sums.add(*batch)
            found = sums.result()
        self._use(found)

    def carry(self, features: Features) -> CellLabels:
        """Labels of the points that every cell is matched to."""
        return carry(self.site, features, self.tau)

    def reset(self) -> None:
        """Return to the points of the source."""
        self._use(self.source)

    def _use(self, points: SitePoints) -> None:
        self.site.points.copy_(points.points)
        self.site.labels.copy_(points.labels)

    def tensors(self) -> dict[str, Tensor]:
        """The points of the site and their labels."""
        return {"points": self.site.points, "labels": self.site.labels}
