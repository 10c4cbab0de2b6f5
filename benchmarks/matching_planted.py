"""Planted multi-graph matching problems: noisy, permuted parts of one hidden universe graph."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.types import GraphBatch


@dataclass(frozen=True)
class Planted:
    """A matching problem with its true matching."""

    graphs: GraphBatch
    affinity: Float[Tensor, "m m n n"]  # cosines of node features; zero on padding
    truth: Int[Tensor, "m n"]  # the universe point of each node, −1 for outliers


def plant(
    seed: int,
    *,
    m: int = 8,
    n: int = 20,
    d: int = 20,
    outliers: int = 0,
    edge_noise: float = 0.0,
    node_noise: float = 0.5,
    node_dim: int = 16,
) -> Planted:
    """`m` dense graphs, each of `n` of the `d` universe points and `outliers` random nodes, in random order.

    Universe points have unit Gaussian features and symmetric edge weights uniform in [0, 1]. The features and edges of
    a node are those of its point plus Gaussian noise. The affinity is the cosine between noisy features.
    """
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(d, node_dim, generator=draw)
    weights = _symmetric(torch.rand(d, d, generator=draw))
    size = n + outliers
    nodes = torch.randn(m, size, node_dim, generator=draw)
    edges = _symmetric(torch.rand(m, size, size, generator=draw))
    truth = torch.full((m, size), -1)
    for i in range(m):
        inliers = torch.randperm(size, generator=draw)[:n]
        chosen = torch.randperm(d, generator=draw)[:n]
        truth[i, inliers] = chosen
        nodes[i, inliers] = points[chosen] + node_noise * torch.randn(n, node_dim, generator=draw)
        noise = _symmetric(torch.randn(n, n, generator=draw)) * edge_noise
        edges[i, inliers[:, None], inliers] = (weights[chosen[:, None], chosen] + noise).fill_diagonal_(0)
    return _planted(nodes, edges, truth)


def plant_places(
    seed: int,
    *,
    m: int = 6,
    n: int = 24,
    d: int = 30,
    place_noise: float = 0.02,
    node_noise: float = 1.0,
    node_dim: int = 8,
    neighbours: int = 6,
) -> Planted:
    """`m` sparse neighbour graphs in the plane.

    Universe points have a position in the unit square and low-dimensional features. A graph contains `n` of them, with
    Gaussian noise on positions and features, rotated by a random angle. Its edges join each node to its nearest
    neighbours, with a weight that falls with their noisy distance.
    """
    draw = torch.Generator().manual_seed(seed)
    places, points = torch.rand(d, 2, generator=draw), torch.randn(d, node_dim, generator=draw)
    truth = torch.stack([torch.randperm(d, generator=draw)[:n] for _ in range(m)])
    noisy = places[truth] + place_noise * torch.randn(m, n, 2, generator=draw)
    angle = 2 * torch.pi * torch.rand(m, generator=draw)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(m, 2, 2)
    distance = torch.cdist(noisy @ turn, noisy @ turn)
    near = distance <= distance.sort(2).values[:, :, neighbours : neighbours + 1]
    edges = _symmetric((-distance / 0.2).exp() * (near | near.mT))
    nodes = points[truth] + node_noise * torch.randn(m, n, node_dim, generator=draw)
    return _planted(nodes, edges, truth)


def plant_links(
    seed: int,
    *,
    m: int = 6,
    n: int = 20,
    d: int = 25,
    density: float = 0.3,
    flips: float = 0.03,
    node_noise: float = 0.8,
    node_dim: int = 12,
) -> Planted:
    """`m` graphs with 0/1 edges, each flipped with probability `flips`; a family not used for any choice."""
    draw = torch.Generator().manual_seed(seed)
    points, links = torch.randn(d, node_dim, generator=draw), torch.rand(d, d, generator=draw) < density
    truth = torch.stack([torch.randperm(d, generator=draw)[:n] for _ in range(m)])
    flipped = torch.rand(m, n, n, generator=draw) < flips
    clean = _symmetric(links.float())[truth[:, :, None], truth[:, None, :]].bool()
    edges = _symmetric((clean ^ flipped).float())
    return _planted(points[truth] + node_noise * torch.randn(m, n, node_dim, generator=draw), edges, truth)


def recall(pairs: Float[Tensor, "m m n n"], planted: Planted) -> float:
    """Share of the true matches of all pairs of different graphs that `pairs` contains."""
    truth = planted.truth
    real = (truth[:, None, :, None] == truth[None, :, None, :]) & (truth >= 0)[:, None, :, None]
    real &= ~torch.eye(len(truth), dtype=torch.bool)[:, :, None, None]
    return float(pairs[real].double().mean())


def _planted(nodes: Tensor, edges: Tensor, truth: Tensor) -> Planted:
    m, size = truth.shape
    labels = torch.ones(m, size, dtype=torch.long)
    graphs = GraphBatch(nodes, edges, labels, labels.bool())
    unit = torch.nn.functional.normalize(nodes, dim=-1).flatten(0, 1)
    return Planted(graphs, (unit @ unit.T).view(m, size, m, size).transpose(1, 2), truth)


def _symmetric(x: Tensor) -> Tensor:
    upper = x.triu(1)
    return upper + upper.mT
