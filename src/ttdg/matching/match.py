"""`match`: multi-graph matching in one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ttdg.errors import UserError, suggestion
from ttdg.matching.agreement import centred_edges
from ttdg.matching.graduated import graduated, scaled_edge_direction
from ttdg.matching.rounding import round_matching
from ttdg.matching.sinkhorn.scaling import FORBIDDEN
from ttdg.matching.solver import solve
from ttdg.matching.spectral import spectral_scores
from ttdg.matching.universe import assign, from_pairs, of_pairs, pair_indices, pairwise, soft_affinity
from ttdg.types import GraphBatch


@dataclass(frozen=True)
class Matches:
    """Hard matches of a batch of graphs."""

    pairs: Float[Tensor, "m m n n"]
    """X: `pairs[i, j, k, l]` is 1 if node k of graph i matches node l of graph j."""
    universe: Float[Tensor, "m n d"] | None
    """U: `universe[i, k, u]` is 1 if node k of graph i matches universe point u, and X_ij = U_i U_jᵀ.

    None for the method "pairwise", whose matches need not be cycle-consistent."""


def match(
    graphs: GraphBatch,
    *,
    universe_size: int,
    method: str = "ga",
    affinity: Float[Tensor, "m m n n"] | None = None,
) -> Matches:
    """Match all graphs to one universe of `universe_size` points, and thereby to each other.

    Args:
        graphs: nodes, edges and mask of the graphs; see `graph_batch`.
        universe_size: d. It may be larger than the number of nodes of any graph.
        method: "ga" refines a spectral start on nodes and edges by graduated assignment, "hippi" refines it on edges
            alone, "spectral" returns it unrefined, "pairwise" matches the nodes of each pair of graphs separately.
        affinity: similarities of the nodes of any two graphs, on the scale of [−1, 1]; by default the cosines of
            `graphs.nodes`.
    """
    if method not in METHODS:
        raise UserError(f"no matching method {method!r}{suggestion(method, METHODS)}")
    similarity = cosine_affinity(graphs) if affinity is None else affinity
    with torch.no_grad():
        return METHODS[method](graphs, similarity, universe_size)


def graph_batch(graphs: Sequence[tuple[Tensor, Tensor]]) -> GraphBatch:
    """One padded batch from a (nodes, edges) pair per graph; edges are made symmetric with a zero diagonal."""
    for index, (nodes, edges) in enumerate(graphs):
        if edges.shape != (len(nodes), len(nodes)):
            raise UserError(
                f"graph {index} has {len(nodes)} nodes but edges of shape {tuple(edges.shape)}; "
                f"pass edges of shape {(len(nodes), len(nodes))}"
            )
    sizes = [len(nodes) for nodes, _ in graphs]
    n = max(sizes, default=0)
    mask = torch.arange(n) < torch.tensor(sizes)[:, None]
    nodes = torch.stack([_pad(nodes, 0, n - len(nodes)) for nodes, _ in graphs])
    edges = torch.stack([_pad(edges, n - len(edges), n - len(edges)) for _, edges in graphs])
    edges = (edges + edges.mT) / 2 * (1 - torch.eye(n, dtype=edges.dtype))
    return GraphBatch(nodes, edges, mask.long(), mask)


def cosine_affinity(graphs: GraphBatch) -> Float[Tensor, "m m n n"]:
    """Cosines of the node features of any two graphs; zero on padding."""
    return pairwise(torch.nn.functional.normalize(graphs.nodes, dim=-1) * graphs.mask[:, :, None])


def _ga(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    U = graduated(graphs, similarity, d)
    return Matches(pairwise(U), U)


def _hippi(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    edges, mask = centred_edges(graphs.edges, graphs.mask), graphs.mask
    start = assign(spectral_scores(soft_affinity(similarity, mask), mask, d), mask)
    U = round_matching(
        solve(lambda U: scaled_edge_direction(edges, U, mask), start, mask, tau=0.15).matching, mask
    )
    return Matches(pairwise(U), U)


def _spectral(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    U = round_matching(spectral_scores(soft_affinity(similarity, graphs.mask), graphs.mask, d), graphs.mask)
    return Matches(pairwise(U), U)


def _pairwise(graphs: GraphBatch, similarity: Tensor, d: int) -> Matches:
    """The Hungarian algorithm on each pair of graphs separately; d is unused."""
    i, j = pair_indices(len(graphs.mask), graphs.mask.device)
    X = round_matching(
        of_pairs(similarity).masked_fill(~graphs.mask[j][:, None, :], FORBIDDEN), graphs.mask[i]
    )
    return Matches(from_pairs(X, torch.diag_embed(graphs.mask.to(X.dtype))), None)


def _pad(x: Tensor, columns: int, rows: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns, 0, rows))


METHODS: dict[str, Callable[[GraphBatch, Tensor, int], Matches]] = {
    "ga": _ga,
    "hippi": _hippi,
    "spectral": _spectral,
    "pairwise": _pairwise,
}
