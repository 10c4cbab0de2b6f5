"""The morphology prior: a universe of anatomical points, learned at source sites, to which images are matched.

* `MorphologyPrior`: projection of features, universe embeddings, edges and affinity; matches nodes to the universe.
* `PriorSpec`: the settings from which a `MorphologyPrior` is built.
* `prior_for`: an untrained prior with the feature widths of a given network.
* `feature_maps`: logits of a network together with the feature maps that the prior reads.
* `prior_loss`: L(𝒰), the loss that trains the universe.
* `add_ring_label`, `RING_CELLS`: labels the background around structures as a class of its own; the ring's width.

Submodules: `inspection` and `correspondence` measure whether a trained universe corresponds to anatomy; `locations` and
`universe_signals` compute label-free signals of how well a prediction fits the universe.
"""

from ttdg.prior.features import feature_maps
from ttdg.prior.loss import prior_loss
from ttdg.prior.module import RING_CELLS, MorphologyPrior, PriorSpec, add_ring_label, prior_for

__all__ = [
    "RING_CELLS",
    "MorphologyPrior",
    "PriorSpec",
    "add_ring_label",
    "feature_maps",
    "prior_for",
    "prior_loss",
]
