"""The morphology prior: the source anatomy as a universe of points to which every image is matched."""

from ttdg.prior.loss import prior_loss
from ttdg.prior.module import RING, MorphologyPrior, PriorSpec, add_ring_label, feature_maps, prior_for

__all__ = [
    "RING",
    "MorphologyPrior",
    "PriorSpec",
    "add_ring_label",
    "feature_maps",
    "prior_for",
    "prior_loss",
]
