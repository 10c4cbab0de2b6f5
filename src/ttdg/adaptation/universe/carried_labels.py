"""Labels carried along the matching: from sure images of a site to unsure ones, through the universe.

Every cell c of the node grid, with feature v_c, is matched softly to the universe points:

    A_cu = softmax_u(⟨v_c, u⟩ / τ)

Cells of sure images move each point to where it appears at the site, and give it a label. Λ_u is the label of the
point's tissue, y_c the label of the cell, and w_c the certainty of its image:

    u' ∝ κ u + Σ_c w_c A_cu ⟨Λ_u, y_c⟩ v_c
    L_u ∝ κ Λ_u + Σ_c w_c A_cu y_c

A cell of any image then takes the label Σ_u A'_cu L_u, where A' is the matching to the points u'. Every correspondence
between two images passes through the points, so that cells matched to one point correspond in all images.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ttdg.prior import MorphologyPrior

KAPPA = 20.0  # κ, the weight of the source's point and label, in cells


@dataclass(frozen=True)
class SitePoints:
    """Universe points as they appear at a site, and their labels there."""

    points: Float[Tensor, "d h"]  # unit vectors
    labels: Float[Tensor, "d l"]  # distribution over the labels


def source_points(prior: MorphologyPrior) -> SitePoints:
    """The points of the source, each with the label of its tissue."""
    one_hot = torch.eye(len(prior.universe), device=prior.universe.device)
    return SitePoints(prior.universe_points().detach(), prior.by_label(one_hot))


def carry(site: SitePoints, projected: Float[Tensor, "b h y x"], tau: float) -> Float[Tensor, "b l y x"]:
    """Σ_u A_cu L_u: the label that every cell takes from the points that it is matched to."""
    return torch.einsum("bdyx,dl->blyx", _matching(site, projected, tau), site.labels)


class SiteSums:
    """The two sums over cells, collected batch by batch."""

    def __init__(self, site: SitePoints, source: SitePoints, tau: float) -> None:
        self.site, self.source, self.tau = site, source, tau
        self.points, self.labels = KAPPA * source.points, KAPPA * source.labels

    def add(
        self,
        projected: Float[Tensor, "b h y x"],
        labels: Float[Tensor, "b l y x"],
        certainty: Float[Tensor, " b"],
    ) -> None:
        """Add the cells of a batch of images, weighted by the certainty of each image."""
        A = _matching(self.site, projected, self.tau)
        weighted = labels * certainty[:, None, None, None]
        agreeing = A * torch.einsum("dl,blyx->bdyx", self.source.labels, weighted)
        self.points = self.points + torch.einsum("bdyx,bhyx->dh", agreeing, projected)
        self.labels = self.labels + torch.einsum("bdyx,blyx->dl", A, weighted)

    def result(self) -> SitePoints:
        """U' and L."""
        return SitePoints(F.normalize(self.points, dim=1), self.labels / self.labels.sum(1, keepdim=True))


def _matching(site: SitePoints, projected: Float[Tensor, "b h y x"], tau: float) -> Float[Tensor, "b d y x"]:
    return (torch.einsum("bhyx,dh->bdyx", projected, site.points) / tau).softmax(1)
