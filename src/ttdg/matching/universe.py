"""Universe matchings U_i (Eq. 3) and what follows from them: every X_ij = U_i U_jᵀ is cycle-consistent."""

from functools import cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.matching.sinkhorn import sinkhorn
from ttdg.matching.sinkhorn.scaling import FORBIDDEN


def assign(
    scores: Float[Tensor, "*batch n d"],
    row_mask: Bool[Tensor, "*batch n"],
    col_mask: Bool[Tensor, "*batch d"] | None = None,
    *,
    tau: float = 0.05,
    outlier_score: float | None = None,
    tolerance: float = 0.0,
    max_sweeps: int = 10,
    backward: Literal["unrolled", "implicit"] = "unrolled",
) -> Float[Tensor, "*batch n d"]:
    """Soft partial assignment: the smaller side is matched whole, the larger at most once.

    n_i ≤ d: every row sums to 1, every column to at most 1. n_i > d: columns sum to 1, rows to at most 1. An
    empty graph gives zeros. With `outlier_score` a row may also go to a dustbin at that score, and no side
    must be matched: what a row lacks to 1 is its probability of being an outlier.
    """
    a = row_mask.to(scores.dtype)
    everywhere = (*scores.shape[:-2], scores.shape[-1])
    b = scores.new_ones(everywhere) if col_mask is None else col_mask.to(scores.dtype)
    if outlier_score is not None:
        scores, a, b = _with_dustbin(scores, a, b, outlier_score)
    P = sinkhorn(scores, a, b, tau, tolerance=tolerance, max_sweeps=max_sweeps, backward=backward)
    return P if outlier_score is None else P[..., :-1, :-1]


def universe_scores(
    nodes: Float[Tensor, "m n h"],
    universe: Float[Tensor, "d h"],
    allowed: Bool[Tensor, "m n d"] | None = None,
) -> Float[Tensor, "m n d"]:
    """𝒱_i 𝒰ᵀ, how well each node fits each universe point; pairs outside `allowed` are impossible."""
    scores = nodes @ universe.T
    return scores if allowed is None else forbid(scores, allowed)


def same_class(labels: Int[Tensor, "m n"], universe_classes: Int[Tensor, " d"]) -> Bool[Tensor, "m n d"]:
    """Which nodes may meet which points of a class-typed universe, where every point belongs to one class."""
    return labels[:, :, None] == universe_classes


def same_class_pairs(labels: Int[Tensor, "m n"]) -> Bool[Tensor, "m m n n"]:
    """W_ij: which nodes of any two graphs are of one class; padding, label 0, is of none."""
    return (labels[:, None, :, None] == labels[None, :, None, :]) & (labels > 0)[:, None, :, None]


def forbid(scores: Float[Tensor, "*shape"], allowed: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return scores.masked_fill(~allowed, FORBIDDEN)


def soft_affinity(
    scores: Float[Tensor, "m m n n"],
    mask: Bool[Tensor, "m n"],
    *,
    tau: float = 0.05,
    tolerance: float = 0.0,
    max_sweeps: int = 10,
    backward: Literal["unrolled", "implicit"] = "unrolled",
) -> Float[Tensor, "m m n n"]:
    """M̂_ij = Sinkhorn(M_ij, τ) for i < j; M̂_ji = M̂_ijᵀ; M̂_ii = I. In `stacked` layout."""
    i, j = pair_indices(len(mask), mask.device)
    P = assign(
        of_pairs(scores),
        mask[i],
        mask[j],
        tau=tau,
        tolerance=tolerance,
        max_sweeps=max_sweeps,
        backward=backward,
    )
    return from_pairs(P, torch.diag_embed(mask.to(P.dtype)))


def pair_indices(m: int, device: torch.device | None = None) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """The indices i and j of all pairs of graphs with i < j."""
    i, j, _ = _above_diagonal(m, device or torch.get_default_device())
    return i, j


@cache
def _above_diagonal(m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """i, j, and the place of block ij among all m² of them. Kept, and kept where they are needed."""
    with torch.inference_mode(False):
        i, j = torch.triu_indices(m, m, offset=1, device=device)
        return i, j, m * i + j


def of_pairs(blocks: Float[Tensor, "m m n n"]) -> Float[Tensor, "p n n"]:
    """The blocks above the diagonal. Selected by one index, whose gradient is one sum; by two it is a sort."""
    return blocks.flatten(0, 1).index_select(0, _above_diagonal(len(blocks), blocks.device)[2])


def from_pairs(blocks: Float[Tensor, "p n n"], own: Float[Tensor, "m n n"]) -> Float[Tensor, "m m n n"]:
    """The symmetric matrix of blocks with `blocks` above the diagonal and `own` on it."""
    m, n, _ = own.shape
    i, j = pair_indices(m, own.device)
    M = blocks.new_zeros(m, n, m, n)
    M[i, :, j] = blocks
    M[j, :, i] = blocks.mT
    M.diagonal(dim1=0, dim2=2).copy_(own.permute(1, 2, 0))
    return M.transpose(1, 2)


def pairwise(U: Float[Tensor, "m n d"]) -> Float[Tensor, "m m n n"]:
    """X_ij = U_i U_jᵀ."""
    stacked = U.flatten(0, 1)
    return stacked_blocks(stacked @ stacked.T, len(U))


def stacked_blocks(M: Float[Tensor, "N N"], m: int) -> Float[Tensor, "m m n n"]:
    """One matrix over the nodes of all graphs, seen as its blocks M_ij."""
    n = len(M) // max(m, 1)
    return M.view(m, n, m, n).transpose(1, 2)


def cycle_violation(X: Float[Tensor, "m m n n"]) -> float:
    """The largest entry of X_ik X_kj − X_ij over all i, j, k: above 0 if X breaks Definition 1.

    Graph by graph over k, so that memory stays that of X.
    """
    worst = [(X[:, k, None] @ X[None, k] - X).amax() for k in range(len(X))]
    return float(torch.stack(worst).amax())


def _with_dustbin(
    scores: Tensor, a: Tensor, b: Tensor, outlier_score: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One more column, where every row may go at the outlier score, and one more row, where every column may
    go at no cost; both wide enough for all."""
    scores = torch.nn.functional.pad(scores, (0, 1), value=outlier_score)
    scores = torch.nn.functional.pad(scores, (0, 0, 0, 1), value=0.0)
    return scores, torch.cat([a, b.sum(-1, keepdim=True)], -1), torch.cat([b, a.sum(-1, keepdim=True)], -1)
