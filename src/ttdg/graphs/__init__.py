"""From feature maps to graphs: nodes (φ), edges (𝒜) and affinities (M)."""

from ttdg.graphs.affinity import Affinity, MLPAffinity
from ttdg.graphs.edges import Edges, cosine_distance
from ttdg.graphs.sampling import Nodes, sample_nodes

__all__ = ["Affinity", "Edges", "MLPAffinity", "Nodes", "cosine_distance", "sample_nodes"]
