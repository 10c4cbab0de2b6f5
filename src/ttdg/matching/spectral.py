"""A first matching from node affinities alone: synchronisation by eigenvectors, anchored in d unlike nodes.

If M̂ = 𝐔𝐔ᵀ for a true matching, the rows of its top d eigenvectors are equal for nodes of one universe point
and orthogonal otherwise. So d mutually most unlike rows name the points, and a node's score is its cosine to
each.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.matching.universe import assign


def spectral_start(
    affinity: Float[Tensor, "m m n n"], mask: Bool[Tensor, "m n"], universe_size: int, *, tau: float = 0.05
) -> Float[Tensor, "m n d"]:
    """The soft matching of `spectral_scores`. Feed it M̂ (`soft_affinity`): raw similarities do far worse."""
    return assign(spectral_scores(affinity, mask, universe_size), mask, tau=tau)


def spectral_scores(
    affinity: Float[Tensor, "m m n n"], mask: Bool[Tensor, "m n"], universe_size: int
) -> Float[Tensor, "m n d"]:
    m, _, n, _ = affinity.shape
    M = affinity.transpose(1, 2).reshape(m * n, m * n)
    rank = min(universe_size, m * n)
    rows = torch.nn.functional.normalize(_embedding(M, rank), dim=1) * mask.reshape(-1, 1)
    scores = rows @ rows[_anchors(rows, rank)].T
    return torch.nn.functional.pad(scores, (0, universe_size - rank)).view(m, n, universe_size)


def _embedding(
    M: Float[Tensor, "N N"], rank: int, *, spare: int = 16, rounds: int = 6
) -> Float[Tensor, "N r"]:
    """Top eigenvectors times the roots of their eigenvalues, by subspace iteration where that is cheaper."""
    if len(M) <= 3 * (rank + spare):
        values, vectors = torch.linalg.eigh(M)
    else:
        draw = torch.Generator(M.device).manual_seed(0)
        Q = torch.randn(len(M), rank + spare, generator=draw, device=M.device, dtype=M.dtype)
        for _ in range(rounds):
            Q = torch.linalg.qr(M @ Q).Q
        values, vectors = torch.linalg.eigh(Q.T @ M @ Q)
        vectors = Q @ vectors
    return vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()


def _anchors(rows: Float[Tensor, "N r"], count: int) -> Int[Tensor, " d"]:
    """Greedily, the row farthest from the span of those taken before: pivoted Cholesky of the Gram matrix."""
    left = rows.square().sum(1)
    L = rows.new_zeros(len(rows), count)
    taken = torch.zeros(count, dtype=torch.long, device=rows.device)
    for step in range(count):
        taken[step : step + 1] = pivot = left.argmax(
            0, keepdim=True
        )  # never an int: a GPU would be waited for
        column = (rows @ rows[pivot][0] - L @ L[pivot][0]) / left[pivot].clamp(min=1e-12).sqrt()
        L[:, step] = column
        left = left - column.square()
    return taken
