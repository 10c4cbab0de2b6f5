"""Score of a matching from edges and nodes alone, without ground truth; used to choose between matchings."""

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
    """Evidence in nats that a hard matching is not random, averaged over pairs of graphs; higher is better.

    Two terms are added per pair of graphs. Edges: −½ log(1 − r²) per directed edge, where r is the correlation of
    matched edge weights. Nodes: ½z² per node, where z is the mean affinity of matched nodes, standardised by the mean
    and the deviation over all pairs of nodes. Both are means over the matches, multiplied by the largest possible
    number of matches. The score therefore does not grow with the number of edges covered, as Eq. 4 does: with partial
    overlap the true matching scores best here, and often does not under Eq. 4.
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
    """Edge weights minus their mean over the graph; zero on the diagonal and on padding.

    Agreement on a missing edge then counts as much as agreement on an edge, and covering more of a dense graph is not
    rewarded by itself.
    """
    real = (
        mask[:, :, None] & mask[:, None, :] & ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    )
    mean = (edges * real).sum((1, 2), keepdim=True) / real.sum((1, 2), keepdim=True).clamp(min=1)
    return (edges - mean) * real


def _edge_correlation(U: Tensor, edges: Tensor) -> Float[Tensor, "m m"]:
    """⟨B_i, B_j⟩ / (‖B_i‖ ‖B_j‖) over points that both graphs use, where B_i = U_iᵀ 𝒜_i U_i (d×d)."""
    B, used = (U.mT @ edges @ U).flatten(1), U.sum(1)
    both = (used[:, :, None] * used[:, None, :]).flatten(1)
    norms = B.square() @ both.T
    return B @ B.T / (norms * norms.T).sqrt().clamp(min=torch.finfo(B.dtype).tiny)


def _node_deviation(X: Tensor, affinity: Tensor, real: Tensor) -> Float[Tensor, "m m"]:
    """Standardised mean affinity of the matched nodes of each pair of graphs; 0 if below the overall mean."""
    count = real.sum().clamp(min=1)
    mean = (affinity * real).sum() / count
    spread = (((affinity - mean) * real).square().sum() / count).sqrt()
    matched = (X * affinity).sum((2, 3)) - X.sum((2, 3)) * mean
    return (matched / (X.sum((2, 3)).clamp(min=1) * spread.clamp(min=torch.finfo(X.dtype).tiny))).clamp(min=0)
