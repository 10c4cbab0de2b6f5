"""From soft to hard: the best discrete matching, once, at the end."""

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
    """U_i ∈ {0,1}^{n×d} maximising ⟨U_i, scores_i⟩, every row and column used at most once, graph by graph.

    The smaller side is matched whole where that is possible: n_i > d leaves n_i − d zero rows, and forbidden
    pairs are never matched. With `outlier_score` a row stays empty where that is worth more than a match.
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
    """The nodes matched, and the columns they are matched to."""
    from scipy.optimize import linear_sum_assignment

    rows = worth[nodes]
    possible = rows > FORBIDDEN / 2
    filled = torch.where(possible, rows, _penalty(rows[possible]))
    row, col = (torch.from_numpy(x) for x in linear_sum_assignment(filled.numpy(), maximize=True))
    kept = possible[row, col]
    return nodes[row[kept]], col[kept]


def _penalty(worth: Float[Tensor, " k"]) -> float:
    """Worse than all possible pairs together, yet of their size: −10³⁰ would swallow their digits."""
    if not len(worth):
        return 0.0
    return float(worth.min() - (worth.max() - worth.min() + 1) * (len(worth) + 1))
