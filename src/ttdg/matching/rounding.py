"""From soft to hard: the best discrete matching, once, at the end."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.matching.scaling import FORBIDDEN

Array = np.ndarray


def round_matching(
    scores: Float[Tensor, "m n d"],
    mask: Bool[Tensor, "m n"],
    *,
    outlier_score: Float[Tensor, "m n"] | None = None,
) -> Float[Tensor, "m n d"]:
    """U_i ∈ {0,1}^{n×d} maximising ⟨U_i, scores_i⟩ with every row and column used at most once, graph by
    graph.

    The smaller side is matched whole where that is possible: n_i > d leaves n_i − d zero rows, and forbidden
    pairs are never matched. With `outlier_score` a row stays empty where that is worth more than a match.
    """
    values, real = scores.detach().double().cpu().numpy(), mask.cpu().numpy()
    spare = None if outlier_score is None else outlier_score.detach().double().cpu().numpy()
    matches = [
        _matches(i, values[i], real[i], None if spare is None else spare[i]) for i in range(len(values))
    ]
    U = torch.zeros_like(scores)
    U[tuple(torch.from_numpy(np.concatenate([*matches, np.empty((0, 3), int)])).to(U.device).T)] = 1.0
    return U


def _matches(graph: int, values: Array, real: Array, outlier_score: Array | None) -> Array:
    """Rows (graph, node, universe point) of one graph's matching, by the Hungarian method."""
    from scipy.optimize import linear_sum_assignment

    nodes, d = np.flatnonzero(real), values.shape[1]
    worth = values[nodes]
    if outlier_score is not None:
        worth = np.hstack([worth, np.repeat(outlier_score[nodes, None], len(nodes), axis=1)])
    possible = worth > FORBIDDEN / 2
    row, col = linear_sum_assignment(np.where(possible, worth, _penalty(worth[possible])), maximize=True)
    kept = possible[row, col] & (col < d)
    return np.stack([np.full(kept.sum(), graph), nodes[row[kept]], col[kept]], axis=1)


def _penalty(worth: Array) -> float:
    """Worse than all possible pairs together, yet of their order of magnitude: −10³⁰ would swallow their
    digits."""
    return float(worth.min() - (np.ptp(worth) + 1) * (len(worth) + 1)) if worth.size else 0.0
