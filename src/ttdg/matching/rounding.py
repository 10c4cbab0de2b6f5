"""Rounding of a soft matching to the best hard one, by the Hungarian algorithm."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ttdg.matching.sinkhorn.scaling import FORBIDDEN


def round_matching(
    scores: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    *,
    outlier_score: Float[Tensor, "m n"] | None = None,
) -> Float[Tensor, "m n d"]:
    """Hard matching U_i ∈ {0, 1}^{n×d} of each graph that maximises ⟨U_i, scores_i⟩ (Eq. 3).

    Each row and each column is used at most once, and the smaller side is matched completely where that is possible:
    for n_i > d, n_i − d rows stay zero. Forbidden pairs are never matched. With `outlier_score`, a row stays zero if
    its outlier score is worth more than a match. The result has no gradient.
    """
    worth, d = scores.detach().double(), scores.shape[2]
    if outlier_score is not None:
        bins = outlier_score.detach().double()[:, :, None].expand(-1, -1, mask.shape[1])
        worth = torch.cat([worth, bins], 2)
    matches = [
        _hungarian(graph, nodes.nonzero()[:, 0]) for graph, nodes in zip(worth.cpu(), mask.cpu(), strict=True)
    ]
    U = torch.zeros_like(worth)
    for i, (node, point) in enumerate(matches):
        U[i, node, point] = 1.0
    return U[:, :, :d].to(scores.dtype)


def _hungarian(
    worth: Float[Tensor, "n d"], nodes: Int[Tensor, " k"]
) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """The matched nodes and, for each, its column."""
    from scipy.optimize import linear_sum_assignment

    rows = worth[nodes]
    possible = rows > FORBIDDEN / 2
    filled = torch.where(possible, rows, _penalty(rows[possible]))
    row, col = (torch.from_numpy(x) for x in linear_sum_assignment(filled.numpy(), maximize=True))
    kept = possible[row, col]
    return nodes[row[kept]], col[kept]


def _penalty(worth: Float[Tensor, " k"]) -> float:
    """A score for forbidden pairs that no sum of possible pairs can outweigh.

    It has the magnitude of the possible scores, because −10³⁰ would cancel their digits.
    """
    if not len(worth):
        return 0.0
    return float(worth.min() - (worth.max() - worth.min() + 1) * (len(worth) + 1))
