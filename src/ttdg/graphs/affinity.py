"""Similarity M_ij of the nodes of any two graphs, before Sinkhorn. Symmetric: M_ji = M_ijᵀ.

Blocks i = j are zero: a graph is not compared with itself. All blocks lie in memory as one N×N matrix.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ttdg.matching.universe import from_pairs, pair_indices, stacked_blocks


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
        scores = (
            self.query(nodes).flatten(0, 1) @ self.key(nodes).flatten(0, 1).T
        )  # all pairs both ways at once
        return stacked_blocks((scores + scores.T) / 2 * _between_graphs(mask), len(mask))


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
        i, j = pair_indices(len(nodes), nodes.device)
        there, back = torch.cat([i, j]), torch.cat([j, i])
        x, y = self.query(nodes).index_select(0, there), self.key(nodes).index_select(0, back)
        scores = relu_sum(x, y, self.score.weight[0]) + self.score.bias
        blocks = (scores[: len(i)] + scores[len(i) :].mT) / 2 * (mask[i][:, :, None] & mask[j][:, None, :])
        return from_pairs(blocks, blocks.new_zeros(len(mask), *blocks.shape[1:]))


def relu_sum(
    x: Float[Tensor, "p n c"], y: Float[Tensor, "p l c"], w: Float[Tensor, " c"]
) -> Float[Tensor, "p n l"]:
    """Σ_c w_c relu(x_kc + y_lc) for all k, l, without a tensor of n × l × c."""
    with torch.autocast(x.device.type, enabled=False):
        x, y, w = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, y, w))
        return by_distances(x, y, w) if x.is_cpu else BySlices.apply(x, y, w, 64)  # type: ignore[no-untyped-call]


def by_distances(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """relu(z) = (z + |z|)/2, and Σ_c |w_c| |x_kc + y_lc| over the c of one sign of w is an L₁ distance, between
    |w|x and −|w|y, for which torch has a kernel, fast on CPUs."""
    linear = (x @ w)[:, :, None] + (y @ w)[:, None, :]
    size, bent = w.abs(), torch.zeros_like(linear)
    for sign, chosen in ((1.0, w > 0), (-1.0, w < 0)):
        bent = bent + sign * torch.cdist((x * size)[:, :, chosen], -(y * size)[:, :, chosen], p=1.0)
    return (linear + bent) / 2


class BySlices(torch.autograd.Function):
    """Slice of channels by slice, forward and again backward, so that no more than one is ever kept; fast on GPUs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(x, y, w)
        ctx.width = width
        total = x.new_zeros(*x.shape[:2], y.shape[1])
        for z, part in zip(_slices(x, y, width), torch.split(w, width), strict=True):
            total += z.relu_() @ part
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, y, w = ctx.saved_tensors
        dx, dy, dw = [], [], []
        for z in _slices(x, y, ctx.width):
            passed = (z > 0) * G[..., None]
            dx.append(passed.sum(2))
            dy.append(passed.sum(1))
            dw.append(G.reshape(-1) @ z.relu_().flatten(0, 2))
        return torch.cat(dx, 2) * w, torch.cat(dy, 2) * w, torch.cat(dw), None


def _slices(x: Tensor, y: Tensor, width: int) -> Iterator[Tensor]:
    """x_kc + y_lc for some c at a time."""
    for a, b in zip(torch.split(x, width, 2), torch.split(y, width, 2), strict=True):
        yield a[:, :, None] + b[:, None]


def _between_graphs(mask: Bool[Tensor, "m n"]) -> Bool[Tensor, "N N"]:
    """Which pairs of nodes are both real, and of different graphs."""
    graph, real = torch.arange(len(mask), device=mask.device).repeat_interleave(mask.shape[1]), mask.flatten()
    return (graph[:, None] != graph) & real[:, None] & real
