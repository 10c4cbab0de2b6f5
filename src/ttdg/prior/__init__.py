"""The morphology prior: a universe of anatomical points, learned at source sites, to which images are matched.

* `MorphologyPrior`: projection of features, universe embeddings, edges and affinity; matches nodes to the universe.
* `PriorSpec`: the settings from which a `MorphologyPrior` is built.
* `LiteralPrior`, `literal_prior_for`, `literal_loss`: the prior of the paper's Algorithm 1 as printed, an untrained
  one, and its loss.
* `GraphPrior`, `prior_from_part`: what both kinds of prior share; the prior of a checkpoint, of either kind.
* `prior_for`: an untrained prior for feature maps of given widths.
* `prior_loss`: L(𝒰), the loss that trains the universe.
* `add_ring_label`, `RING_CELLS`: marks the background around structures as a separate class; width of this ring.

Graphs, built from feature maps and matched by `ttdg.matching`:

* `sample_nodes`, `Nodes`: φ of Algorithm 1: evenly spread nodes per class and feature level; the nodes of a batch.
* `Edges`, `cosine_distance`: 𝒜_i, the weighted adjacency matrix of each graph; 1 − cos of any two nodes of a graph.
* `Affinity`, `MLPAffinity`: M_ij, bilinear, or by a multi-layer perceptron on concatenated node features.

Submodules: `inspection` and `correspondence` measure whether a trained universe corresponds to anatomy; `locations` and
`universe_signals` compute label-free signals of how well a prediction fits the universe.
"""

from ttdg.prior.affinity import Affinity, MLPAffinity
from ttdg.prior.edges import Edges, cosine_distance
from ttdg.prior.graph_prior import GraphPrior
from ttdg.prior.literal import LiteralPrior, literal_loss, literal_prior_for, prior_from_part
from ttdg.prior.loss import prior_loss
from ttdg.prior.module import RING_CELLS, MorphologyPrior, PriorSpec, add_ring_label, prior_for
from ttdg.prior.sampling import Nodes, sample_nodes

__all__ = [
    "RING_CELLS",
    "Affinity",
    "Edges",
    "GraphPrior",
    "LiteralPrior",
    "MLPAffinity",
    "MorphologyPrior",
    "Nodes",
    "PriorSpec",
    "add_ring_label",
    "cosine_distance",
    "literal_loss",
    "literal_prior_for",
    "prior_for",
    "prior_from_part",
    "prior_loss",
    "sample_nodes",
]
