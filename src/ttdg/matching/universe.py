"""Universe matchings U_i (Eq. 3) and the cycle-consistent pairwise matchings X_ij = U_i U_jᵀ (Lemma 1)."""

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
    """Soft partial assignment Sinkhorn(scores, τ): the relaxed projection to 𝕌 (Eq. 3).

    For n_i ≤ d every row sums to 1 and every column to at most 1; for n_i > d every column sums to 1 and every row to
    at most 1. An empty graph gives zeros.

    Args:
        scores: e.g. 𝒱_i 𝒰ᵀ.
        row_mask: real rows.
        col_mask: real columns; by default all.
        tau: temperature, the paper's regularisation factor.
        outlier_score: if given, a row may also be assigned to a dustbin at this score, and neither side must be
            matched. 1 minus the row's sum is then its probability of being an outlier.
        tolerance: see `sinkhorn`; 0 runs `max_sweeps` sweeps.
        max_sweeps: number of sweeps, at most.
        backward: gradient of the sweeps ("unrolled") or of the fixed point ("implicit").
    """
    a = row_mask.to(scores.dtype)
    columns = (*scores.shape[:-2], scores.shape[-1])
    b = scores.new_ones(columns) if col_mask is None else col_mask.to(scores.dtype)
    if outlier_score is not None:
        scores, a, b = _with_dustbin(scores, a, b, outlier_score)
    P = sinkhorn(scores, a, b, tau, tolerance=tolerance, max_sweeps=max_sweeps, backward=backward)
    return P if outlier_score is None else P[..., :-1, :-1]


def universe_scores(
    nodes: Float[Tensor, "m n h"],
    universe: Float[Tensor, "d h"],
    allowed: Bool[Tensor, "m n d"] | None = None,
) -> Float[Tensor, "m n d"]:
    """𝒱_i 𝒰ᵀ: the score of each node for each universe point; pairs outside `allowed` are forbidden."""
    scores = nodes @ universe.T
    return scores if allowed is None else forbid(scores, allowed)


def same_class(labels: Int[Tensor, "m n"], universe_classes: Int[Tensor, " d"]) -> Bool[Tensor, "m n d"]:
    """Pairs of nodes and points of the same class, for a universe whose points each belong to one class."""
    return labels[:, :, None] == universe_classes


def same_class_pairs(labels: Int[Tensor, "m n"]) -> Bool[Tensor, "m m n n"]:
    """W_ij: pairs of nodes of two graphs with the same class; padding (label 0) has no class."""
    return (labels[:, None, :, None] == labels[None, :, None, :]) & (labels > 0)[:, None, :, None]


def forbid(scores: Float[Tensor, "*shape"], allowed: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Scores with FORBIDDEN where a pair is not allowed."""
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
    """M̂_ij = Sinkhorn(M_ij, τ) for i < j, M̂_ji = M̂_ijᵀ and M̂_ii = I (Eq. 12), in `stacked` layout."""
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
    """Indices i and j of all pairs of graphs with i < j."""
    i, j, _ = _above_diagonal(m, device or torch.get_default_device())
    return i, j


@cache
def _above_diagonal(m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """i, j, and the index of block ij among all m² blocks; cached per device."""
    with torch.inference_mode(False):
        i, j = torch.triu_indices(m, m, offset=1, device=device)
        return i, j, m * i + j


def of_pairs(blocks: Float[Tensor, "m m n n"]) -> Float[Tensor, "p n n"]:
    """The blocks i < j of a matrix of blocks.

    Selected by one flat index, whose gradient is one sum; two indices would make the gradient sort.
    """
    return blocks.flatten(0, 1).index_select(0, _above_diagonal(len(blocks), blocks.device)[2])


def from_pairs(blocks: Float[Tensor, "p n n"], own: Float[Tensor, "m n n"]) -> Float[Tensor, "m m n n"]:
    """Symmetric matrix of blocks with `blocks` at i < j and `own` on the diagonal: the inverse of `of_pairs`."""
    m, n, _ = own.shape
    i, j = pair_indices(m, own.device)
    M = blocks.new_zeros(m, n, m, n)
    M[i, :, j] = blocks
    M[j, :, i] = blocks.mT
    M.diagonal(dim1=0, dim2=2).copy_(own.permute(1, 2, 0))
    return M.transpose(1, 2)


def pairwise(U: Float[Tensor, "m n d"]) -> Float[Tensor, "m m n n"]:
    """X_ij = U_i U_jᵀ for all pairs of graphs (Lemma 1)."""
    stacked = U.flatten(0, 1)
    return stacked_blocks(stacked @ stacked.T, len(U))


def stacked_blocks(M: Float[Tensor, "N N"], m: int) -> Float[Tensor, "m m n n"]:
    """View of one N×N matrix over the nodes of all m graphs as its blocks M_ij."""
    n = len(M) // max(m, 1)
    return M.view(m, n, m, n).transpose(1, 2)


def cycle_violation(X: Float[Tensor, "m m n n"]) -> float:
    """Largest entry of X_ik X_kj − X_ij over all i, j, k; above 0 if X violates Definition 1 (Eq. 2).

    Loops over k, so that memory stays at the size of X.
    """
    worst = [(X[:, k, None] @ X[None, k] - X).amax() for k in range(len(X))]
    return float(torch.stack(worst).amax())


def _with_dustbin(
    scores: Tensor, a: Tensor, b: Tensor, outlier_score: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds a dustbin column at the outlier score and a dustbin row at score 0, each with room for all mass."""
    scores = torch.nn.functional.pad(scores, (0, 1), value=outlier_score)
    scores = torch.nn.functional.pad(scores, (0, 0, 0, 1), value=0.0)
    return scores, torch.cat([a, b.sum(-1, keepdim=True)], -1), torch.cat([b, a.sum(-1, keepdim=True)], -1)
