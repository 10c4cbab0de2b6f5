"""The front door: match many graphs at once, without knowing what is behind it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.errors import UserError, near_miss
from ttdg.matching.directions import edge_direction, in_gains, node_direction
from ttdg.matching.rounding import round_matching
from ttdg.matching.scaling import FORBIDDEN
from ttdg.matching.solver import Direction, solve
from ttdg.matching.spectral import spectral_scores, spectral_start
from ttdg.matching.universe import from_pairs, pairs, pairwise, soft_affinity
from ttdg.types import GraphBatch

SELF_WEIGHT = 0.25
TAU = 0.15  # in gains; chosen on planted problems of 2 to 16 graphs and 16 to 100 nodes, as are the others


@dataclass(frozen=True)
class Matches:
    """Hard matches: `pairs[i, j, k, l]` is 1 where node k of graph i is node l of graph j.

    `universe[i, k, u]` is 1 where that node is point u of the universe, of which `pairs` are the consequence;
    None for a method that matches pair by pair, whose matches may contradict each other round a cycle.
    """

    pairs: Float[Tensor, "m m n n"]
    universe: Float[Tensor, "m n d"] | None


def match(
    graphs: GraphBatch,
    *,
    universe_size: int,
    method: str = "ga",
    affinity: Float[Tensor, "m m n n"] | None = None,
    edge_weight: float = 2.0,
) -> Matches:
    """Match all graphs to one universe of `universe_size` points, hence to each other.

    method: "ga" refines a spectral start by nodes and edges (graduated assignment), "hippi" by edges alone,
    "spectral" not at all; "pairwise" matches nodes pair by pair, for comparison. `affinity` holds
    similarities in the order of [−1, 1] between the nodes of any two graphs; cosines of `graphs.nodes` if
    not given.
    """
    if method not in METHODS:
        raise UserError(f"no matching method {method!r}{near_miss(method, METHODS)}")
    similarity = cosine_affinity(graphs) if affinity is None else affinity
    with torch.no_grad():
        return METHODS[method](graphs, similarity, universe_size, edge_weight)


def graph_batch(graphs: Sequence[tuple[Tensor, Tensor]]) -> GraphBatch:
    """One padded batch from (nodes, edges) of graphs of any sizes; edges become symmetric, without loops."""
    sizes = [len(nodes) for nodes, _ in graphs]
    n = max(sizes)
    mask = torch.arange(n) < torch.tensor(sizes)[:, None]
    nodes = torch.stack([_grow(nodes, 0, n - len(nodes)) for nodes, _ in graphs])
    edges = torch.stack([_grow(edges, n - len(edges), n - len(edges)) for _, edges in graphs])
    edges = (edges + edges.mT) / 2 * (1 - torch.eye(n, dtype=edges.dtype))
    return GraphBatch(nodes, edges, mask.long(), mask)


def cosine_affinity(graphs: GraphBatch) -> Float[Tensor, "m m n n"]:
    return pairwise(torch.nn.functional.normalize(graphs.nodes, dim=-1) * graphs.mask[:, :, None])


def centred(graphs: GraphBatch) -> Float[Tensor, "m n n"]:
    """Edge weights less their mean in the graph: agreement on a missing edge then counts as much as on an
    edge, and overlapping more of a dense graph is no gain in itself."""
    real = graphs.mask[:, :, None] & graphs.mask[:, None, :]
    real = real & ~torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
    mean = (graphs.edges * real).sum((1, 2), keepdim=True) / real.sum((1, 2), keepdim=True).clamp(min=1)
    return (graphs.edges - mean) * real


def _ga(graphs: GraphBatch, similarity: Tensor, d: int, edge_weight: float) -> Matches:
    M, edges = soft_affinity(similarity, graphs.mask), centred(graphs)

    def direction(U: Tensor) -> Tensor:
        V = in_gains(node_direction(M, U) - (1 - SELF_WEIGHT) * U, graphs.mask)
        return V + edge_weight * _edge_gains(edges, U, graphs.mask) if edge_weight else V

    return _refined(direction, graphs, M, d)


def _hippi(graphs: GraphBatch, similarity: Tensor, d: int, edge_weight: float) -> Matches:
    M, edges = soft_affinity(similarity, graphs.mask), centred(graphs)
    return _refined(lambda U: _edge_gains(edges, U, graphs.mask), graphs, M, d)


def _spectral(graphs: GraphBatch, similarity: Tensor, d: int, edge_weight: float) -> Matches:
    return _rounded(spectral_scores(soft_affinity(similarity, graphs.mask), graphs.mask, d), graphs)


def _pairwise(graphs: GraphBatch, similarity: Tensor, d: int, edge_weight: float) -> Matches:
    """Hungarian on every pair by itself."""
    i, j = pairs(len(graphs.mask), graphs.mask.device)
    possible = similarity[i, j].masked_fill(~graphs.mask[j][:, None, :], FORBIDDEN)
    X = round_matching(possible, graphs.mask[i])
    return Matches(from_pairs(X, torch.diag_embed(graphs.mask.to(X.dtype))), None)


def _edge_gains(edges: Tensor, U: Tensor, mask: Tensor) -> Tensor:
    return in_gains(edge_direction(edges, U, self_weight=SELF_WEIGHT), mask)


def _refined(direction: Direction, graphs: GraphBatch, M: Tensor, d: int) -> Matches:
    start = spectral_start(M, graphs.mask, d)
    return _rounded(solve(direction, start, graphs.mask, tau=TAU, tolerance=1e-3).matching, graphs)


def _rounded(scores: Tensor, graphs: GraphBatch) -> Matches:
    U = round_matching(scores, graphs.mask)
    return Matches(pairwise(U), U)


def _grow(x: Tensor, columns: int, rows: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns, 0, rows))


METHODS: dict[str, Callable[[GraphBatch, Tensor, int, float], Matches]] = {
    "ga": _ga,
    "hippi": _hippi,
    "spectral": _spectral,
    "pairwise": _pairwise,
}
