"""Small planted matching problems, solved in milliseconds."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ttdg.types import GraphBatch


@dataclass(frozen=True)
class Planted:
    graphs: GraphBatch
    universe: Tensor  # m n d, the true matching

    @property
    def pairs(self) -> Tensor:
        return torch.einsum("ind,jpd->ijnp", self.universe, self.universe)


@pytest.fixture
def plant():
    """Graphs cut from one hidden universe graph, each in its own order, with noise on edges and nodes."""

    def make(
        seed: int, sizes: list[int], d: int, edge_noise: float = 0.0, node_noise: float = 0.0
    ) -> Planted:
        draw = torch.Generator().manual_seed(seed)
        points = torch.randn(d, 8, generator=draw, dtype=torch.float64)
        weights = torch.rand(d, d, generator=draw, dtype=torch.float64)
        weights = weights + weights.T
        m, n = len(sizes), max(sizes)
        nodes = torch.zeros(m, n, 8, dtype=torch.float64)
        edges = torch.zeros(m, n, n, dtype=torch.float64)
        universe = torch.zeros(m, n, d, dtype=torch.float64)
        mask = torch.arange(n) < torch.tensor(sizes)[:, None]
        for i, size in enumerate(sizes):
            chosen = torch.randperm(d, generator=draw)[:size]
            noisy = points[chosen] + node_noise * torch.randn(size, 8, generator=draw, dtype=torch.float64)
            jitter = edge_noise * torch.randn(size, size, generator=draw, dtype=torch.float64)
            nodes[i, :size] = noisy
            edges[i, :size, :size] = weights[chosen[:, None], chosen] + jitter
            universe[i, range(size), chosen] = 1
        edges = edges.triu(1) + edges.triu(1).mT
        return Planted(GraphBatch(nodes, edges, mask.long(), mask), universe)

    return make


@pytest.fixture
def ragged():
    """Random symmetric edges, affinities, scores and a soft matching for graphs of the given sizes."""

    def make(seed: int, sizes: list[int], d: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        m, n = len(sizes), max(max(sizes), 1)
        mask = torch.arange(n) < torch.tensor(sizes)[:, None]
        edges = torch.rand(m, n, n, generator=draw, dtype=torch.float64)
        edges = (edges + edges.mT) * mask[:, :, None] * mask[:, None, :]
        affinity = torch.rand(m, n, m, n, generator=draw, dtype=torch.float64) * mask[:, :, None, None] * mask
        affinity = (affinity + affinity.permute(2, 3, 0, 1)).transpose(1, 2)
        U = torch.rand(m, n, d, generator=draw, dtype=torch.float64) * mask[:, :, None]
        return edges, affinity, U, mask

    return make
