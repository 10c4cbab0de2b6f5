"""Graduated assignment by nodes and edges, in hotter and hotter runs, judged by agreement: what `match` calls "ga"."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.matching.agreement import agreement, centred_edges
from ttdg.matching.directions import edge_direction, in_gains, node_direction
from ttdg.matching.rounding import round_matching
from ttdg.matching.solver import Projection, solve
from ttdg.matching.spectral import spectral_scores
from ttdg.matching.universe import assign, soft_affinity
from ttdg.types import GraphBatch

Stages = tuple[tuple[float, float], ...]
"""Weights of edges against nodes, and temperatures; both in gains."""

# From cool, trusting nodes, to hot, trusting edges. All constants here were chosen on planted problems: 2 to 16 graphs
# of 16 to 100 nodes, dense and in the plane; docs/matching.md has recall on a family they have not seen.
RUNS: tuple[Stages, ...] = (
    ((1.0, 0.15),),
    ((2.0, 0.15),),
    ((2.0, 0.3), (2.0, 0.15)),
    ((4.0, 0.5), (4.0, 0.2)),
    ((6.0, 0.8), (4.0, 0.3), (2.0, 0.15)),
)
SELF_WEIGHT = 0.2
CONCLUSIVE = 3.0
"""Agreement in units of log n!, the most that chance is good for, above which no other start is tried."""
SOFTNESS = (0.1, 0.4)
"""Temperatures of M̂: sharp, a match is what is most alike; soft, what is alike in the sum over all graphs."""


@dataclass(frozen=True)
class _Start:
    scores: Float[Tensor, "m n d"]
    project: Projection


def graduated(
    graphs: GraphBatch, similarity: Float[Tensor, "m m n n"], universe_size: int
) -> Float[Tensor, "m n d"]:
    """The matching of the best agreement, over the starts and the runs from each until two in a row are no better."""
    edges = centred_edges(graphs.edges, graphs.mask)
    chance = float(torch.lgamma(graphs.mask.sum(1).double() + 1).mean())

    def judged(scores: Tensor) -> tuple[float, Tensor]:
        U = round_matching(scores, graphs.mask)
        return float(agreement(U, graphs.edges, similarity, graphs.mask)), U

    found: list[tuple[float, Tensor]] = []
    for tau in SOFTNESS:
        M = soft_affinity(similarity, graphs.mask, tau=tau)
        starts = _starts(M, graphs.mask, universe_size)
        found += [_best_run(M, edges, graphs.mask, start, judged) for start in starts]
        if max(agrees for agrees, _ in found) > chance * CONCLUSIVE:
            break
    return max(found, key=lambda run: run[0])[1]


def edge_gains(
    edges: Float[Tensor, "m n n"], U: Float[Tensor, "m n d"], mask: Bool[Tensor, "m n"]
) -> Float[Tensor, "m n d"]:
    return in_gains(edge_direction(edges, U, self_weight=SELF_WEIGHT), mask)


def _starts(M: Tensor, mask: Tensor, d: int) -> list[_Start]:
    """The spectral start; of two graphs, each in turn taken for the universe itself.

    The universe's points have no names: permuting them changes no match. Between two graphs that freedom is the whole
    of one matching, and left to float it only blurs what the other is compared with.
    """
    if len(mask) != 2 or int(mask.sum(1).amax()) > d:
        return [_Start(spectral_scores(M, mask, d), assign)]
    return [_held(M, mask, d, graph) for graph in (0, 1)]


def _held(M: Tensor, mask: Tensor, d: int, graph: int) -> _Start:
    """Node k of `graph` is point k of the universe, for good."""
    place = torch.nn.functional.one_hot((mask[graph].cumsum(0) - 1).clamp(min=0), d) * mask[graph][:, None]
    U = place.to(M.dtype)

    def project(scores: Tensor, mask: Tensor, /, *, tau: float) -> Tensor:
        other = assign(scores[1 - graph], mask[1 - graph], tau=tau)
        return torch.stack([U, other] if graph == 0 else [other, U])

    scores = M[1 - graph, graph] @ U
    return _Start(torch.stack([U, scores] if graph == 0 else [scores, U]), project)


def _best_run(
    M: Tensor, edges: Tensor, mask: Tensor, start: _Start, judged: Callable[[Tensor], tuple[float, Tensor]]
) -> tuple[float, Tensor]:
    best, misses = judged(start.scores), 0
    for stages in RUNS:
        found = judged(_refined(M, edges, start, mask, stages))
        best, misses = (found, 0) if found[0] > best[0] * (1 + 1e-6) else (best, misses + 1)
        if misses == 2:
            break
    return best


def _refined(M: Tensor, edges: Tensor, start: _Start, mask: Tensor, stages: Stages) -> Tensor:
    U = start.project(start.scores, mask, tau=0.05)
    for weight, tau in stages:
        direction = partial(_gains, M, edges, mask, weight)
        U = solve(
            direction, U, mask, tau=tau, tolerance=1e-2, max_iterations=30, project=start.project
        ).matching
    return U


def _gains(M: Tensor, edges: Tensor, mask: Tensor, weight: float, U: Tensor) -> Tensor:
    nodes = in_gains(node_direction(M, U) - (1 - SELF_WEIGHT) * U, mask)  # M̂_ii = I
    return nodes + weight * edge_gains(edges, U, mask)
