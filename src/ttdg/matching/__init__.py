"""Multi-graph matching: padded batches of graphs in, cycle-consistent matchings out.

All functions work on plain tensors and need only torch (and SciPy for rounding). Start with `match`; the other
names are the pieces it is built from. docs/paper.md lists them by equation, docs/matching.md explains them.

Matching in one call:

- `graph_batch`: pads graphs of unequal sizes to one `GraphBatch`
- `match`, `Matches`: matches all graphs to one universe; the result
- `cosine_affinity`: default node affinities: cosines of the node features

Soft and hard assignment:

- `sinkhorn`: entropic assignment, Sinkhorn(X, τ), also for n ≠ d
- `sinkhorn_log`: the same iterates in the log domain; slow reference
- `assign`: `sinkhorn` for masks instead of masses, with an optional dustbin
- `round_matching`: Hungarian algorithm: the best hard matching
- `FORBIDDEN`: score of a pair that must not be matched

Universe matchings (Eq. 2, Eq. 3, Lemma 1):

- `universe_scores`: 𝒱_i 𝒰ᵀ
- `same_class`: which nodes may be matched to which points of a class-typed universe
- `same_class_pairs`: W_ij: which nodes of two graphs have the same class
- `forbid`: sets the scores of pairs that are not allowed to FORBIDDEN
- `soft_affinity`: M̂_ij = Sinkhorn(M_ij, τ)
- `pairwise`: X_ij = U_i U_jᵀ
- `cycle_violation`: largest violation of Definition 1

Directions V and objectives (Eq. 4, 6, 7, 11):

- `edge_direction`: HiPPI, 𝐀𝐔𝐔ᵀ𝐀𝐔
- `within_class`: edges between nodes of the same class: the recommended 𝐀̃
- `label_gram_direction`: HiPPI on the printed 𝐀̃ = 𝐖ᵀ𝐀𝐖
- `node_direction`: Σ_j M_ij U_j
- `qap_direction`: V_i of graduated assignment
- `qap_objective`: J, the multi-graph quadratic assignment objective
- `stacked`: affinities in the memory layout that makes `node_direction` free of copies
- `scale_by_mean_gain`: V in a unit that gives one temperature the same meaning for every graph

Solving (Eq. 8, Algorithm 2, inner loop of Algorithm 3):

- `solve`, `Solution`: U ← project(V(U)) until U stops changing; the result
- `annealing`: geometric temperature schedule
- `spectral_scores`: universe scores from the eigenvectors of M̂
- `spectral_start`: a first U from those scores
- `agreement`: how well a matching fits edges and nodes, without ground truth
- `centred_edges`: edge weights minus their mean

Losses (Eq. 9, Eq. 12):

- `universe_loss`: L(𝒰) per node, in three forms
- `ridge_loss`: Eq. 9 exactly as printed
- `ridge_universe`: the 𝒰 that minimises Eq. 9
- `matching_loss`: L_mat per node, in three forms
- `fenchel_young`: the default form of L_mat
"""

from ttdg.matching.agreement import agreement, centred_edges
from ttdg.matching.directions import (
    edge_direction,
    label_gram_direction,
    node_direction,
    qap_direction,
    qap_objective,
    scale_by_mean_gain,
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
    "scale_by_mean_gain",
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
