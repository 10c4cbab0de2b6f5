"""Multi-graph matching on plain tensors: from padded graphs to matchings that agree round every cycle.

Needs torch (and SciPy for rounding); knows nothing of images. `match` is the front door, the rest its parts.
"""

from ttdg.matching.agreement import agreement, centred_edges
from ttdg.matching.directions import (
    edge_direction,
    in_gains,
    label_gram_direction,
    node_direction,
    qap_direction,
    qap_objective,
    stacked,
    within_class,
)
from ttdg.matching.losses import fenchel_young, matching_loss, ridge_loss, ridge_universe, universe_loss
from ttdg.matching.match import Matches, cosine_affinity, graph_batch, match
from ttdg.matching.rounding import round_matching
from ttdg.matching.sinkhorn import sinkhorn, sinkhorn_log
from ttdg.matching.sinkhorn.scaling import FORBIDDEN
from ttdg.matching.solver import Solution, annealing, solve
from ttdg.matching.spectral import spectral_scores, spectral_start
from ttdg.matching.universe import (
    assign,
    cycle_violation,
    forbid,
    pairwise,
    same_class,
    same_class_pairs,
    soft_affinity,
    universe_scores,
)

__all__ = [
    "FORBIDDEN",
    "Matches",
    "Solution",
    "agreement",
    "annealing",
    "assign",
    "centred_edges",
    "cosine_affinity",
    "cycle_violation",
    "edge_direction",
    "fenchel_young",
    "forbid",
    "graph_batch",
    "in_gains",
    "label_gram_direction",
    "match",
    "matching_loss",
    "node_direction",
    "pairwise",
    "qap_direction",
    "qap_objective",
    "ridge_loss",
    "ridge_universe",
    "round_matching",
    "same_class",
    "same_class_pairs",
    "sinkhorn",
    "sinkhorn_log",
    "soft_affinity",
    "solve",
    "spectral_scores",
    "spectral_start",
    "stacked",
    "universe_loss",
    "universe_scores",
    "within_class",
]
