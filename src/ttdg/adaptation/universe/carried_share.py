"""The share of carried labels that comes closest to the true labels, measured at hospitals where these are known.

A learner blends the judge's labels j_i of image i with the carried labels c_i by the share s (1 − r_i), where r_i is
the rank of the image's expected Dice. The share with the least squared distance to the true labels y_i is

    s = Σ_i (1 − r_i) ⟨c_i − j_i, y_i − j_i⟩ / Σ_i (1 − r_i)² ‖c_i − j_i‖²
"""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.universe.stored_labels import StoredLabels


class CarriedShare:
    """The two sums over the images of several hospitals."""

    def __init__(self) -> None:
        self.product = self.square = 0.0

    @torch.no_grad()
    def add(self, stored: StoredLabels, truth: Int[Tensor, "n h w"]) -> None:
        """Add the images of a hospital, whose labels the memory holds in the order of their true labels."""
        rows = torch.arange(len(truth))
        size = stored.memory.columns["carried"].shape[2:]
        judged, carried = (stored.labels(name, rows, size) for name in ("judged", "carried"))
        one_hot = F.one_hot(truth, judged.shape[1]).movedim(-1, 1).to(judged)
        error, move = F.interpolate(one_hot, size=size, mode="area") - judged, carried - judged
        unsure = 1 - stored.ranks()
        self.product += float((unsure * (move * error).sum((1, 2, 3))).sum())
        self.square += float((unsure.square() * move.square().sum((1, 2, 3))).sum())

    def best(self) -> float:
        """The best share in [0, 1]; 0 if carried labels never differed from the judge's."""
        return min(1.0, max(0.0, self.product / self.square)) if self.square else 0.0
