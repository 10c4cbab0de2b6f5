"""How well matched graphs agree, without knowing the truth: what tells a good matching from a bad one."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.matching.universe import pairwise


def agreement(
    U: Float[Tensor, "m n d"],
    edges: Float[Tensor, "m n n"],
    affinity: Float[Tensor, "m m n n"],
    mask: Bool[Tensor, "m n"],
) -> Float[Tensor, ""]:
    """Over all pairs of graphs, twice the correlation of matched edges plus the mean affinity of matched nodes.

    Unlike the objective of Eq. 4 it counts agreement per match, not its sum, so it does not prefer matchings that
    cover more edges, or heavier ones. With partial overlap the truth does best here, and often not in Eq. 4.
    """
    X = pairwise(U)
    nodes = (X * affinity).sum((2, 3)) / X.sum((2, 3)).clamp(min=1)
    pair = 2 * _edge_correlation(U, centred(edges, mask)) + nodes
    return (pair.sum() - pair.trace()) / max(len(U) * (len(U) - 1), 1)


def centred(edges: Float[Tensor, "m n n"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m n n"]:
    """Edge weights less their mean in the graph: agreement on a missing edge then counts as much as on an edge, and
    overlapping more of a dense graph is no gain in itself."""
    real = (
        mask[:, :, None] & mask[:, None, :] & ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    )
    mean = (edges * real).sum((1, 2), keepdim=True) / real.sum((1, 2), keepdim=True).clamp(min=1)
    return (edges - mean) * real


def _edge_correlation(U: Tensor, edges: Tensor) -> Float[Tensor, "m m"]:
    """⟨B_i, B_j⟩ over the norms of B_i and B_j where both graphs have nodes, B_i = U_iᵀ 𝒜_i U_i on the universe."""
    B, there = (U.mT @ edges @ U).flatten(1), U.sum(1)
    both = (there[:, :, None] * there[:, None, :]).flatten(1)
    norms = B.square() @ both.T
    return B @ B.T / (norms * norms.T).sqrt().clamp(min=torch.finfo(B.dtype).tiny)
