"""Edge weights 𝒜_i between the nodes of a graph (Eq. 5)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


class Edges(nn.Module):
    """𝒜 = DropEdge{softmax(𝒱W_x (𝒱W_y)ᵀ / √h) ∘ 1/(ε + D)} (Eq. 5): symmetric, diagonal 0, row sums at most 1.

    D_kl = 1 − cos(v_k, v_l). The printed D = 𝒱𝒱ᵀ/‖𝒱‖₂ is a similarity and lacks one norm, and its elementwise inverse
    has poles.

    Args:
        node_dim: h, the length of a node's feature vector.
        epsilon: ε, keeps 1/(ε + D) finite.
        drop: probability of DropEdge, in training only.
        reach: if given, weights also fall with the distance of the nodes' normalised coordinates x, by the factor
            exp(−‖x_k − x_l‖² / (2 reach²)).
    """

    def __init__(
        self, node_dim: int, *, epsilon: float = 0.1, drop: float = 0.1, reach: float | None = None
    ) -> None:
        super().__init__()
        self.query = nn.Linear(node_dim, node_dim, bias=False)
        self.key = nn.Linear(node_dim, node_dim, bias=False)
        self.epsilon, self.drop, self.reach = epsilon, drop, reach

    def forward(
        self,
        nodes: Float[Tensor, "m n h"],
        mask: Bool[Tensor, "m n"],
        coordinates: Float[Tensor, "m n 2"] | None = None,
    ) -> Float[Tensor, "m n n"]:
        """The edge weights of each graph; in training some are dropped. `coordinates` matter with `reach` only."""
        logits = self.query(nodes) @ self.key(nodes).mT / nodes.shape[2] ** 0.5
        A = logits.masked_fill(~mask[:, None, :], -1e30).softmax(2) / (self.epsilon + cosine_distance(nodes))
        if self.reach is not None and coordinates is not None:
            A = A * torch.exp(-torch.cdist(coordinates, coordinates).square() / (2 * self.reach**2))
        A = normalise_adjacency(A, mask)
        return drop_edges(A, self.drop) if self.training else A


def cosine_distance(nodes: Float[Tensor, "m n h"]) -> Float[Tensor, "m n n"]:
    """D_kl = 1 − cos(v_k, v_l) ∈ [0, 2] for all nodes k, l of each graph."""
    unit = F.normalize(nodes, dim=2)
    return (1 - unit @ unit.mT).clamp(min=0)


def normalise_adjacency(A: Float[Tensor, "m n n"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m n n"]:
    """A made symmetric, zero on the diagonal and on padding, and scaled to a largest row sum of 1 per graph."""
    between = mask[:, :, None] & mask[:, None, :] & ~torch.eye(A.shape[1], dtype=torch.bool, device=A.device)
    A = torch.where(between, (A + A.mT) / 2, 0.0)
    return A / A.sum(2).amax(1).clamp(min=torch.finfo(A.dtype).tiny)[:, None, None]


def drop_edges(A: Float[Tensor, "m n n"], rate: float) -> Float[Tensor, "m n n"]:
    """DropEdge: sets each undirected edge to 0 with probability `rate` and leaves the others unchanged."""
    kept = (torch.rand_like(A) >= rate).triu(1)
    return A * (kept | kept.mT)
