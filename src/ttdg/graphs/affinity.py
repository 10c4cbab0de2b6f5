"""Similarity M_ij of the nodes of any two graphs, before Sinkhorn. Symmetric: M_ji = M_ijᵀ.

Blocks i = j are zero: a graph is not compared with itself. All blocks lie in memory as one N×N matrix.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ttdg.matching.universe import from_pairs, pairs


class Affinity(nn.Module):
    """M_ij = 𝒱_i W_x (𝒱_j W_y)ᵀ, symmetrised. Starts as the plain inner product, so that untrained it is no
    noise."""

    def __init__(self, node_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(node_dim, node_dim, bias=False)
        self.key = nn.Linear(node_dim, node_dim, bias=False)
        nn.init.eye_(self.query.weight)
        nn.init.eye_(self.key.weight)

    def forward(self, nodes: Float[Tensor, "m n h"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m m n n"]:
        query, key = self.query(nodes), self.key(nodes)
        i, j = pairs(len(nodes), nodes.device)
        return _symmetric(query[i] @ key[j].mT, key[i] @ query[j].mT, mask)


class MLPAffinity(nn.Module):
    """M_ij[k, l] = w₂ · relu(W₁[v_k; v_l] + b₁) + b₂, the concatenating MLP of the official code,
    symmetrised.

    W₁[v_k; v_l] = W_x v_k + W_y v_l, so the first layer runs once a node; the second is a weighted L₁
    distance.
    """

    def __init__(self, node_dim: int, hidden: int = 512) -> None:
        super().__init__()
        self.query = nn.Linear(node_dim, hidden, bias=False)
        self.key = nn.Linear(node_dim, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, nodes: Float[Tensor, "m n h"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m m n n"]:
        x, y = self.query(nodes), self.key(nodes)
        i, j = pairs(len(nodes), nodes.device)
        p = len(i)
        w, b = self.score.weight[0], self.score.bias
        both = relu_sum(torch.cat([x[i], x[j]]), torch.cat([y[j], y[i]]), w) + b
        return _symmetric(both[:p], both[p:].mT, mask)


def relu_sum(
    x: Float[Tensor, "p n c"], y: Float[Tensor, "p l c"], w: Float[Tensor, " c"], *, slices: int = 64
) -> Float[Tensor, "p n l"]:
    """Σ_c w_c relu(x_kc + y_lc) for all k, l, without a tensor of n × l × c.

    relu(z) = (z + |z|)/2, and Σ_c |w_c| |x_kc + y_lc| over the c of one sign of w is an L₁ distance, between
    |w|x and −|w|y, for which torch has a kernel. In slices of the channels, since its CUDA backward does
    keep one slice.
    """
    linear = (x @ w)[:, :, None] + (y @ w)[:, None, :]
    size, bent = w.abs(), torch.zeros_like(linear)
    for sign, chosen in ((1.0, w > 0), (-1.0, w < 0)):
        a, b = (x * size)[:, :, chosen], -(y * size)[:, :, chosen]
        for a_slice, b_slice in zip(torch.split(a, slices, 2), torch.split(b, slices, 2), strict=True):
            bent = bent + sign * torch.cdist(a_slice, b_slice, p=1.0)
    return (linear + bent) / 2


def _symmetric(there: Tensor, back: Tensor, mask: Tensor) -> Tensor:
    """½(f(v_i, v_j) + f(v_j, v_i)ᵀ) on the real nodes of all pairs, so that the order of the graphs is
    nothing."""
    i, j = pairs(len(mask), mask.device)
    blocks = (there + back) / 2 * (mask[i][:, :, None] & mask[j][:, None, :])
    return from_pairs(blocks, blocks.new_zeros(len(mask), *blocks.shape[1:]))
