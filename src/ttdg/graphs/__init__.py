"""Graphs from feature maps: nodes 𝒱 (sampled by φ), edges 𝒜 (Eq. 5) and affinities M.

- `sample_nodes`: φ of Algorithm 1: evenly spread nodes per class and feature level
- `Nodes`: the sampled nodes of a batch: features, labels, mask, coordinates
- `Edges`: 𝒜_i, the weighted adjacency matrix of each graph
- `cosine_distance`: 1 − cos of any two nodes of a graph
- `Affinity`: M_ij, bilinear
- `MLPAffinity`: M_ij by a multi-layer perceptron on concatenated node features

A graph batch is `ttdg.types.GraphBatch`; `ttdg.matching` matches it.
"""

from ttdg.graphs.affinity import Affinity, MLPAffinity
from ttdg.graphs.edges import Edges, cosine_distance
from ttdg.graphs.sampling import Nodes, sample_nodes

__all__ = ["Affinity", "Edges", "MLPAffinity", "Nodes", "cosine_distance", "sample_nodes"]
