"""The front door: match many graphs at once, without knowing what is behind it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.errors import UserError, suggestion
from ttdg.matching.agreement import centred_edges
from ttdg.matching.graduated import edge_gains, graduated
from ttdg.matching.rounding import round_matching
from ttdg.matching.sinkhorn.scaling import FORBIDDEN
from ttdg.matching.solver import solve
from ttdg.matching.spectral import spectral_scores
from ttdg.matching.universe import assign, from_pairs, of_pairs, pair_indices, pairwise, soft_affinity
from ttdg.types import GraphBatch


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
) -> Matches:
    """Match all graphs to one universe of `universe_size` points, hence to each other.

    "ga" refines a spectral start by nodes and edges (graduated assignment), in hotter and hotter runs until two in
    a row agree no better; "hippi" refines it by edges alone, "spectral" not at all; "pairwise" matches nodes pair
    by pair, for comparison. `affinity` holds similarities in the order of [−1, 1] between the nodes of any two
    graphs; cosines of `graphs.nodes` if not given.
    """
    if method not in METHODS:
        raise UserError(f"no matching method {method!r}{suggestion(method, METHODS)}")
    similarity = cosine_affinity(graphs) if affinity is None else affinity
    with torch.no_grad():
        return METHODS[method](graphs, similarity, universe_size)


def graph_batch(graphs: Sequence[tuple[Tensor, Tensor]]) -> GraphBatch:
    """One padded batch from (nodes, edges) of graphs of any sizes; edges become symmetric, without loops."""
    for place, (nodes, edges) in enumerate(graphs):
        if edges.shape != (len(nodes), len(nodes)):
            raise UserError(f"graph {place} has {len(nodes)} nodes but edges of shape {tuple(edges.shape)}")
    sizes = [len(nodes) for nodes, _ in graphs]
    n = max(sizes, default=0)
    mask = torch.arange(n) < torch.tensor(sizes)[:, None]
    nodes = torch.stack([_grow(nodes, 0, n - len(nodes)) for nodes, _ in graphs])
    edges = torch.stack([_grow(edges, n - len(edges), n - len(edges)) for _, edges in graphs])
    edges = (edges + edges.mT) / 2 * (1 - torch.eye(n, dtype=edges.dtype))
    return GraphBatch(nodes, edges, mask.long(), mask)


def cosine_affinity(graphs: GraphBatch) -> Float[Tensor, "m m n n"]:
    return pairwise(torch.nn.functional.normalize(graphs.nodes, dim=-1) * graphs.mask[:, :, None])


def _ga(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    U = graduated(graphs, similarity, d)
    return Matches(pairwise(U), U)


def _hippi(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    edges, mask = centred_edges(graphs.edges, graphs.mask), graphs.mask
    start = assign(spectral_scores(soft_affinity(similarity, mask), mask, d), mask)
    U = round_matching(solve(lambda U: edge_gains(edges, U, mask), start, mask, tau=0.15).matching, mask)
    return Matches(pairwise(U), U)


def _spectral(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    U = round_matching(spectral_scores(soft_affinity(similarity, graphs.mask), graphs.mask, d), graphs.mask)
    return Matches(pairwise(U), U)


def _pairwise(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    """Hungarian on every pair by itself."""
    i, j = pair_indices(len(graphs.mask), graphs.mask.device)
    X = round_matching(
        of_pairs(similarity).masked_fill(~graphs.mask[j][:, None, :], FORBIDDEN), graphs.mask[i]
    )
    return Matches(from_pairs(X, torch.diag_embed(graphs.mask.to(X.dtype))), None)


def _grow(x: Tensor, columns: int, rows: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns, 0, rows))


METHODS: dict[str, Callable[[GraphBatch, Tensor, int], Matches]] = {
    "ga": _ga,
    "hippi": _hippi,
    "spectral": _spectral,
    "pairwise": _pairwise,
}
