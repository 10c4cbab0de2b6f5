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
    """How surprising the agreement of matched edges and nodes would be by chance, in nats, mean over pairs of graphs.

    −½ log(1 − r²) an edge, for the correlation r of matched edges, counted from both its ends, and ½z² a node, for the
    mean affinity of matched nodes in deviations from that of any two. Means are over matches, but count for as many as
    there could be, so it does not prefer matchings that cover more edges, as Eq. 4 does: with partial overlap the truth
    does best here, and often not there.
    """
    X, sizes, other = pairwise(U), mask.sum(1), ~torch.eye(len(U), dtype=torch.bool, device=U.device)
    most = torch.minimum(sizes[:, None], sizes).to(U.dtype)
    r = _edge_correlation(U, centred_edges(edges, mask)).clamp(0, 1 - 1e-6)
    z = _node_deviation(
        X, affinity, mask[:, None, :, None] & mask[None, :, None, :] & other[:, :, None, None]
    )
    pair = most * (most - 1) * -0.5 * torch.log1p(-r.square()) + most * z.square() / 2
    return (pair * other).sum() / other.sum().clamp(min=1)


def centred_edges(edges: Float[Tensor, "m n n"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m n n"]:
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


def _node_deviation(X: Tensor, affinity: Tensor, real: Tensor) -> Float[Tensor, "m m"]:
    """Of the mean affinity of matched nodes from that of all pairs of nodes, in standard deviations; 0 if below it."""
    count = real.sum().clamp(min=1)
    mean = (affinity * real).sum() / count
    spread = (((affinity - mean) * real).square().sum() / count).sqrt()
    matched = (X * affinity).sum((2, 3)) - X.sum((2, 3)) * mean
    return (matched / (X.sum((2, 3)).clamp(min=1) * spread.clamp(min=torch.finfo(X.dtype).tiny))).clamp(min=0)
