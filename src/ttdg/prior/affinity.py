"""Affinity M_ij of the nodes of any two graphs, before Sinkhorn (Algorithm 3, line 7).

Affinities are symmetric: M_ji = M_ijᵀ. The blocks i = j are zero, because a graph is not compared with itself. All
blocks are stored as one N×N matrix (`ttdg.matching.stacked`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ttdg.matching.universe import from_pairs, pair_indices, stacked_blocks


class Affinity(nn.Module):
    """M_ij = 𝒱_i W_x (𝒱_j W_y)ᵀ, symmetrised.

    W_x and W_y start as identities, so that an untrained affinity is the inner product rather than noise.
    """

    def __init__(self, node_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(node_dim, node_dim, bias=False)
        self.key = nn.Linear(node_dim, node_dim, bias=False)
        nn.init.eye_(self.query.weight)
        nn.init.eye_(self.key.weight)

    def forward(self, nodes: Float[Tensor, "m n h"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m m n n"]:
        """The affinities of all pairs of graphs; zero on padding and for i = j."""
        scores = self.query(nodes).flatten(0, 1) @ self.key(nodes).flatten(0, 1).T  # all pairs, both orders
        return stacked_blocks((scores + scores.T) / 2 * _between_graphs(mask), len(mask))


class MLPAffinity(nn.Module):
    """M_ij[k, l] = w₂ · relu(W₁[v_k; v_l] + b₁) + b₂, symmetrised: the MLP of the official code.

    W₁[v_k; v_l] = W_x v_k + W_y v_l, so the first layer runs once per node. The second layer is computed as a weighted
    L₁ distance (`relu_sum`). No tensor of size n_i × n_j × hidden is formed.
    """

    def __init__(self, node_dim: int, hidden: int = 512) -> None:
        super().__init__()
        self.query = nn.Linear(node_dim, hidden, bias=False)
        self.key = nn.Linear(node_dim, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, nodes: Float[Tensor, "m n h"], mask: Bool[Tensor, "m n"]) -> Float[Tensor, "m m n n"]:
        """The affinities of all pairs of graphs; zero on padding and for i = j."""
        i, j = pair_indices(len(nodes), nodes.device)
        first, second = torch.cat([i, j]), torch.cat([j, i])
        x, y = self.query(nodes).index_select(0, first), self.key(nodes).index_select(0, second)
        scores = relu_sum(x, y, self.score.weight[0]) + self.score.bias
        blocks = (scores[: len(i)] + scores[len(i) :].mT) / 2 * (mask[i][:, :, None] & mask[j][:, None, :])
        return from_pairs(blocks, blocks.new_zeros(len(mask), *blocks.shape[1:]))


def relu_sum(
    x: Float[Tensor, "p n c"], y: Float[Tensor, "p l c"], w: Float[Tensor, " c"]
) -> Float[Tensor, "p n l"]:
    """Σ_c w_c relu(x_kc + y_lc) for all k and l, in at least float32, without a tensor of size n × l × c."""
    with torch.autocast(x.device.type, enabled=False):
        x, y, w = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, y, w))
        return relu_sum_by_cdist(x, y, w) if x.is_cpu else ReluSumByChunks.apply(x, y, w, 64)  # type: ignore[no-untyped-call]


def relu_sum_by_cdist(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """`relu_sum` by L₁ distances; fast on CPUs.

    relu(z) = (z + |z|)/2. Over the channels c with one sign of w, Σ_c |w_c| |x_kc + y_lc| is the L₁ distance between
    |w|x and −|w|y, which `torch.cdist` computes.
    """
    linear = (x @ w)[:, :, None] + (y @ w)[:, None, :]
    size, absolute = w.abs(), torch.zeros_like(linear)
    for sign, channels in ((1.0, w > 0), (-1.0, w < 0)):
        distance = torch.cdist((x * size)[:, :, channels], -(y * size)[:, :, channels], p=1.0)
        absolute = absolute + sign * distance
    return (linear + absolute) / 2


class ReluSumByChunks(torch.autograd.Function):
    """`relu_sum` over chunks of `width` channels, recomputed in the backward pass to save memory; fast on GPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor, width: int) -> Tensor:
        """Σ_c w_c relu(x_kc + y_lc)."""
        ctx.save_for_backward(x, y, w)
        ctx.width = width
        total = x.new_zeros(*x.shape[:2], y.shape[1])
        for z, weights in zip(_sums(x, y, width), torch.split(w, width), strict=True):
            total += z.relu_() @ weights
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradients of x, y and w."""
        x, y, w = ctx.saved_tensors
        dx, dy, dw = [], [], []
        for z in _sums(x, y, ctx.width):
            passed = (z > 0) * G[..., None]
            dx.append(passed.sum(2))
            dy.append(passed.sum(1))
            dw.append(G.reshape(-1) @ z.relu_().flatten(0, 2))
        return torch.cat(dx, 2) * w, torch.cat(dy, 2) * w, torch.cat(dw), None


def _sums(x: Tensor, y: Tensor, width: int) -> Iterator[Tensor]:
    """x_kc + y_lc for `width` channels c at a time."""
    for a, b in zip(torch.split(x, width, 2), torch.split(y, width, 2), strict=True):
        yield a[:, :, None] + b[:, None]


def _between_graphs(mask: Bool[Tensor, "m n"]) -> Bool[Tensor, "N N"]:
    """Pairs of real nodes of different graphs."""
    graph, real = torch.arange(len(mask), device=mask.device).repeat_interleave(mask.shape[1]), mask.flatten()
    return (graph[:, None] != graph) & real[:, None] & real
