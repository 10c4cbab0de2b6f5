"""Graduated assignment on nodes and edges: the method "ga" of `match`.

Several runs start from the same matching, each at a higher temperature and with more weight on edges than the last.
The result is the rounded matching with the highest `agreement`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.matching.agreement import agreement, centred_edges
from ttdg.matching.directions import edge_direction, node_direction, scale_by_mean_gain
from ttdg.matching.rounding import round_matching
from ttdg.matching.solver import Projection, solve
from ttdg.matching.spectral import spectral_scores
from ttdg.matching.universe import assign, soft_affinity
from ttdg.types import GraphBatch

Stages = tuple[tuple[float, float], ...]
"""Stages of one run: (weight of edges relative to nodes, temperature), both in units of the mean gain."""

# Runs go from low temperatures, which favour node affinities, to high ones, which favour edges. All constants in this
# file were chosen on planted problems: 2 to 16 graphs of 16 to 100 nodes, dense graphs and graphs in the plane.
# docs/matching.md reports recall on a family of problems that was not used for the choice.
RUNS: tuple[Stages, ...] = (
    ((1.0, 0.15),),
    ((2.0, 0.15),),
    ((2.0, 0.3), (2.0, 0.15)),
    ((4.0, 0.5), (4.0, 0.2)),
    ((6.0, 0.8), (4.0, 0.3), (2.0, 0.15)),
)
SELF_WEIGHT = 0.2
"""Weight of the pairs i = j, which only hold a graph at its current matching."""
CONCLUSIVE = 3.0
"""Agreement, in units of log n! (the most that chance explains), above which the softer M̂ is not tried."""
SOFTNESS = (0.1, 0.4)
"""Temperatures of M̂. A sharp M̂ matches the most similar nodes; a soft M̂ lets all graphs decide together."""


@dataclass(frozen=True)
class _Start:
    """A first matching (as scores) and the projection to use when it is refined."""

    scores: Float[Tensor, "m n d"]
    project: Projection


def graduated(
    graphs: GraphBatch, similarity: Float[Tensor, "m m n n"], universe_size: int
) -> Float[Tensor, "m n d"]:
    """Hard matching with the best agreement over all starts and runs.

    From each start, runs are tried in order until two in a row bring no improvement.
    """
    edges = centred_edges(graphs.edges, graphs.mask)
    chance = float(torch.lgamma(graphs.mask.sum(1).double() + 1).mean())

    def evaluate(scores: Tensor) -> tuple[float, Tensor]:
        U = round_matching(scores, graphs.mask)
        return float(agreement(U, graphs.edges, similarity, graphs.mask)), U

    candidates: list[tuple[float, Tensor]] = []  # (agreement, U)
    for tau in SOFTNESS:
        M = soft_affinity(similarity, graphs.mask, tau=tau)
        starts = _starts(M, graphs.mask, universe_size)
        candidates += [_best_run(M, edges, graphs.mask, start, evaluate) for start in starts]
        if max(score for score, _ in candidates) > chance * CONCLUSIVE:
            break
    return max(candidates, key=lambda candidate: candidate[0])[1]


def scaled_edge_direction(
    edges: Float[Tensor, "m n n"], U: Float[Tensor, "m n d"], mask: Bool[Tensor, "m n"]
) -> Float[Tensor, "m n d"]:
    """HiPPI direction with down-weighted pairs i = j, in units of its mean gain."""
    return scale_by_mean_gain(edge_direction(edges, U, self_weight=SELF_WEIGHT), mask)


def _starts(M: Tensor, mask: Tensor, d: int) -> list[_Start]:
    """The spectral start; for two graphs, instead, two starts in which one graph is fixed as the universe.

    Permuting the universe points changes no match. For two graphs this freedom is as large as a whole matching, so one
    of the two can be fixed; if both move, the one only blurs the comparison for the other.
    """
    if len(mask) != 2 or int(mask.sum(1).amax()) > d:
        return [_Start(spectral_scores(M, mask, d), assign)]
    return [_start_with_fixed(M, mask, d, graph) for graph in (0, 1)]


def _start_with_fixed(M: Tensor, mask: Tensor, d: int, graph: int) -> _Start:
    """A start in which node k of `graph` is universe point k and stays so."""
    point = torch.nn.functional.one_hot((mask[graph].cumsum(0) - 1).clamp(min=0), d) * mask[graph][:, None]
    U = point.to(M.dtype)

    def project(scores: Tensor, mask: Tensor, /, *, tau: float) -> Tensor:
        other = assign(scores[1 - graph], mask[1 - graph], tau=tau)
        return torch.stack([U, other] if graph == 0 else [other, U])

    scores = M[1 - graph, graph] @ U
    return _Start(torch.stack([U, scores] if graph == 0 else [scores, U]), project)


def _best_run(
    M: Tensor, edges: Tensor, mask: Tensor, start: _Start, evaluate: Callable[[Tensor], tuple[float, Tensor]]
) -> tuple[float, Tensor]:
    """(agreement, U) of the best run; stops after two runs in a row without improvement."""
    best, misses = evaluate(start.scores), 0
    for stages in RUNS:
        candidate = evaluate(_refined(M, edges, start, mask, stages))
        best, misses = (candidate, 0) if candidate[0] > best[0] * (1 + 1e-6) else (best, misses + 1)
        if misses == 2:
            break
    return best


def _refined(M: Tensor, edges: Tensor, start: _Start, mask: Tensor, stages: Stages) -> Tensor:
    U = start.project(start.scores, mask, tau=0.05)
    for weight, tau in stages:
        direction = partial(_direction, M, edges, mask, weight)
        U = solve(
            direction, U, mask, tau=tau, tolerance=1e-2, max_iterations=30, project=start.project
        ).matching
    return U


def _direction(M: Tensor, edges: Tensor, mask: Tensor, weight: float, U: Tensor) -> Tensor:
    """Eq. 11 with each term in units of its mean gain, and the pairs i = j at SELF_WEIGHT."""
    nodes = scale_by_mean_gain(node_direction(M, U) - (1 - SELF_WEIGHT) * U, mask)  # M̂_ii = I
    return nodes + weight * scaled_edge_direction(edges, U, mask)
