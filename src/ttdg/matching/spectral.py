"""A first universe matching from node affinities alone, by spectral synchronisation.

If M̂ = 𝐔𝐔ᵀ for a true matching, the rows of its top d eigenvectors are equal for nodes of the same universe point and
orthogonal otherwise. Therefore d rows that differ most from each other represent the universe points, and a node's
score for a point is the cosine of the two rows.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.matching.universe import assign


def spectral_start(
    affinity: Float[Tensor, "m m n n"], mask: Bool[Tensor, "m n"], universe_size: int, *, tau: float = 0.05
) -> Float[Tensor, "m n d"]:
    """Soft matching of `spectral_scores`. Pass M̂ (`soft_affinity`): raw similarities give far worse matchings."""
    return assign(spectral_scores(affinity, mask, universe_size), mask, tau=tau)


def spectral_scores(
    affinity: Float[Tensor, "m m n n"], mask: Bool[Tensor, "m n"], universe_size: int
) -> Float[Tensor, "m n d"]:
    """Cosine of each node's spectral embedding to those of the d anchor nodes."""
    m, _, n, _ = affinity.shape
    M = affinity.transpose(1, 2).reshape(m * n, m * n)
    rank = min(universe_size, m * n)
    rows = torch.nn.functional.normalize(_embedding(M, rank), dim=1) * mask.reshape(-1, 1)
    scores = rows @ rows[_anchors(rows, rank)].T
    return torch.nn.functional.pad(scores, (0, universe_size - rank)).view(m, n, universe_size)


def _embedding(
    M: Float[Tensor, "N N"], rank: int, *, spare: int = 16, rounds: int = 6
) -> Float[Tensor, "N r"]:
    """Top `rank` eigenvectors, each times the square root of its eigenvalue.

    Large matrices use subspace iteration with `spare` extra vectors instead of a full decomposition.
    """
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
    """Indices of `count` rows, chosen greedily: each is the farthest from the span of the rows chosen before.

    This is a pivoted Cholesky decomposition of the Gram matrix.
    """
    residual = rows.square().sum(1)
    L = rows.new_zeros(len(rows), count)
    chosen = torch.zeros(count, dtype=torch.long, device=rows.device)
    for step in range(count):
        pivot = residual.argmax(0, keepdim=True)  # a tensor, not an int: reading it would block on a GPU
        chosen[step : step + 1] = pivot
        column = (rows @ rows[pivot][0] - L @ L[pivot][0]) / residual[pivot].clamp(min=1e-12).sqrt()
        L[:, step] = column
        residual = residual - column.square()
    return chosen
