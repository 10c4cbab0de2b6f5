"""The morphology prior: what the source sites' anatomy looks like, as a universe of points every image is matched to.

Nodes are features of a trained network, projected by φ to unit vectors; 𝒰 holds `points` unit vectors for each
*tissue*: every label of the benchmark, and the ring of background around the structures, which looks unlike the rest.
A node may meet points of its own tissue only. All methods leave the network's weights to the network: the prior lies
beside them.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.errors import UserError
from ttdg.graphs import Affinity, Edges, Nodes, sample_nodes
from ttdg.matching import assign, qap_direction, same_class, same_class_pairs, solve, stacked, universe_scores
from ttdg.networks.resizing import resized
from ttdg.networks.segmenter import pad_to_stride
from ttdg.types import GraphBatch, Part

RING = 4  # cells of the node grid (16 pixels) that count as the surroundings of a structure


@dataclass(frozen=True)
class PriorSpec:
    """All that is needed to build the prior again. Levels: e0…e4 are the encoder's maps, d0…d4 the decoder's."""

    labels: int  # of the benchmark, background included
    channels: tuple[int, ...]  # of the levels
    levels: tuple[str, ...] = ("e2", "e3", "d2")
    node_dim: int = 128
    points: int = 40  # of 𝒰, a tissue; d = (labels + 1) · points
    per_tissue: int = 32  # nodes an image gives of each
    stride: int = 4  # of the grid that nodes lie on
    tau: float = 0.1  # of the posterior and the loss
    tau_match: float = 0.05
    consensus: float = 0.5  # μ: weight of what the other graphs say
    edge_weight: float = 0.0  # λ
    sweeps: int = 10
    iterations: int = 2

    @property
    def tissues(self) -> int:
        return self.labels + 1


class MorphologyPrior(nn.Module):
    """φ, 𝒰, edges and affinity."""

    def __init__(self, spec: PriorSpec) -> None:
        super().__init__()
        if spec.per_tissue > spec.points:
            raise UserError(
                f"{spec.per_tissue} nodes a tissue cannot all be matched to {spec.points} points; raise `points`"
            )
        self.spec = spec
        self.typed = True  # may a node meet points of its own tissue only?
        self.inputs = nn.ModuleList(nn.Conv2d(c, spec.node_dim, 1) for c in spec.channels)
        self.norm = nn.LayerNorm(spec.node_dim)
        self.output = nn.Linear(spec.node_dim, spec.node_dim)
        self.universe = nn.Parameter(
            F.normalize(torch.randn(spec.tissues * spec.points, spec.node_dim), dim=1)
        )
        self.edges = Edges(spec.node_dim)
        self.affinity = Affinity(spec.node_dim)
        tissues = torch.arange(1, spec.tissues + 1).repeat_interleave(spec.points)
        self.register_buffer("tissue_of", tissues, persistent=False)
        self.tissue_of: Tensor

    def project(
        self, maps: Mapping[str, Float[Tensor, "b _c _y _x"]], image: Sequence[int] | None = None
    ) -> Float[Tensor, "b h y x"]:
        """φ: the chosen levels as one map of unit vectors, `stride` pixels apart; `image` is the (height, width) of
        what the maps were made from, where that had to be padded."""
        levels = [maps[name] for name in self.spec.levels]
        size = _grid_size(maps, self.spec.stride)
        x = sum(resized(conv(level), size) for conv, level in zip(self.inputs, levels, strict=True))
        x = self.output(F.relu(self.norm(x.movedim(1, -1))))  # type: ignore[union-attr]
        x = F.normalize(x, dim=-1).movedim(-1, 1)
        if image is None:
            return x
        return x[..., : -(-image[0] // self.spec.stride), : -(-image[1] // self.spec.stride)]

    def points_of_universe(self) -> Float[Tensor, "d h"]:
        return F.normalize(self.universe, dim=1)

    def nodes(self, projected: Float[Tensor, "b c y x"], labels: Int[Tensor, "b h w"]) -> Nodes:
        """Evenly spread nodes of every tissue that is there."""
        tissues = add_ring_label(labels, self.spec.labels, projected.shape[2:])
        classes = range(self.spec.tissues)
        return sample_nodes([projected], tissues, classes=classes, per_class=self.spec.per_tissue)

    def graphs(self, nodes: Nodes) -> GraphBatch:
        edges = self.edges(nodes.features, nodes.mask, nodes.coordinates)
        return GraphBatch(nodes.features, edges, nodes.labels, nodes.mask)

    def scores(self, nodes: Nodes, *, typed: bool = True) -> Float[Tensor, "b n d"]:
        """𝒱𝒰ᵀ; with `typed`, points of other tissues are impossible."""
        allowed = same_class(nodes.labels, self.tissue_of) if typed and self.typed else None
        return universe_scores(nodes.features, self.points_of_universe(), allowed)

    @torch.no_grad()
    def match(
        self,
        nodes: Nodes,
        unary: Float[Tensor, "b n d"] | None = None,
        *,
        tau: float | None = None,
        iterations: int | None = None,
    ) -> Float[Tensor, "b n d"]:
        """U*: every node's place in the universe, by its own score (`unary`, by default 𝒱𝒰ᵀ within its tissue) and by
        what the other graphs' like nodes say."""
        spec, tau = self.spec, tau or self.spec.tau_match
        S = self.scores(nodes) if unary is None else unary
        U = assign(S, nodes.mask, tau=tau, max_sweeps=spec.sweeps)
        if len(U) < 2 or (spec.consensus == 0 and spec.edge_weight == 0):
            return U
        votes = stacked(self.votes(nodes)) if spec.consensus else None
        edges = self.graphs(nodes).edges if spec.edge_weight else S.new_zeros(len(U), U.shape[1], U.shape[1])

        def direction(U: Tensor) -> Tensor:
            return qap_direction(edges, votes, U, edge_weight=spec.edge_weight, unary=S)

        def project(V: Tensor, mask: Tensor, /, *, tau: float) -> Tensor:
            return assign(V, mask, tau=tau, max_sweeps=spec.sweeps)

        solution = solve(
            direction, U, nodes.mask, tau=tau, tolerance=0.0, max_iterations=iterations or spec.iterations,
            project=project,
        )  # fmt: skip
        return solution.matching

    def votes(self, nodes: Nodes) -> Float[Tensor, "m m n n"]:
        """μ/(m−1) · softmax over each other graph's nodes of the same tissue: with which of them a node would go."""
        m = len(nodes.features)
        M = self.affinity(nodes.features, nodes.mask) / 0.1
        like = same_class_pairs(nodes.labels)
        own = torch.eye(m, dtype=torch.bool, device=M.device)[:, :, None, None]
        P = M.masked_fill(~like, -1e30).softmax(-1) * like
        return P.masked_fill(own, 0.0) * (self.spec.consensus / max(m - 1, 1))

    def posterior(self, projected: Float[Tensor, "b h y x"]) -> Float[Tensor, "b l y x"]:
        """P(label | node): the shares of the universe's points a node would go to, tissue by tissue."""
        shares = (self.cosines(projected) / self.spec.tau).softmax(1)
        return self.by_label(shares)

    def cosines(self, projected: Float[Tensor, "b h y x"]) -> Float[Tensor, "b d y x"]:
        return torch.einsum("bhyx,dh->bdyx", projected, self.points_of_universe())

    def by_label(self, shares: Float[Tensor, "b d *rest"]) -> Float[Tensor, "b l *rest"]:
        """Sums over the points of each label; the ring is background."""
        tissues = shares.unflatten(1, (self.spec.tissues, self.spec.points)).sum(2)
        return torch.cat([tissues[:, :1] + tissues[:, -1:], tissues[:, 1:-1]], 1)

    def energy(self, nodes: Nodes, U: Float[Tensor, "b n d"] | None = None) -> Float[Tensor, "b"]:
        """How badly a graph fits the universe: the mean cosine distance of its nodes to their matches."""
        U = self.match(nodes) if U is None else U
        cosine = (U * self.scores(nodes, typed=False)).sum(2)
        real = nodes.mask.sum(1).clamp(min=1)
        return ((U.sum(2) - cosine) * nodes.mask).sum(1) / real

    def to_part(self) -> Part:
        return Part(self.state_dict(), asdict(self.spec))

    @classmethod
    def from_part(cls, part: Part) -> "MorphologyPrior":
        prior = cls(PriorSpec(**_tuples(part.settings)))
        prior.load_state_dict(dict(part.tensors))
        return prior.eval()

    def with_random_universe(self, seed: int = 0) -> "MorphologyPrior":
        """The control: the same φ, and a universe that knows nothing."""
        other = copy.deepcopy(self)
        generator = torch.Generator().manual_seed(seed)
        random = torch.randn(self.universe.shape, generator=generator)
        other.universe.data.copy_(F.normalize(random, dim=1))
        return other

    def without_class_mask(self) -> "MorphologyPrior":
        """The ablation: nodes may meet points of any tissue."""
        other = copy.deepcopy(self)
        other.typed = False
        return other


def feature_maps(
    network: Any, images: Float[Tensor, "b c h w"]
) -> tuple[Float[Tensor, "b l h w"], dict[str, Tensor]]:
    """Logits, and the maps the prior can read, from one forward pass. Images of any size: maps are those of the
    padded image, logits are cut to the image itself."""
    if not hasattr(network, "decoded"):
        raise UserError(
            f"{type(network).__name__} has no encode/decoded/head, which the morphology prior reads; use ttdg's "
            "Segmenter, or a method that needs no prior"
        )
    h, w = images.shape[-2:]
    features = network.encode(pad_to_stride(images))
    decoded = network.decoded(features)
    maps = {f"e{i}": x for i, x in enumerate(features)} | {f"d{i}": x for i, x in enumerate(decoded)}
    return network.head(decoded[-1])[..., :h, :w], maps


def prior_for(network: Any, labels: int, **settings: Any) -> MorphologyPrior:
    """A fresh prior with the widths of this network's levels."""
    levels: Sequence[str] = settings.get("levels", PriorSpec.levels)
    with torch.no_grad():
        device = next(network.parameters()).device
        was, _ = network.training, network.eval()
        maps = feature_maps(network, torch.zeros(1, network.spec.channels, 64, 64, device=device))[1]
        network.train(was)
    channels = tuple(maps[name].shape[1] for name in levels)
    return MorphologyPrior(PriorSpec(labels, channels, **settings)).to(device)


def add_ring_label(labels: Int[Tensor, "b h w"], count: int, size: Sequence[int]) -> Int[Tensor, "b h w"]:
    """Labels with one more value, `count`: background within RING cells of a structure."""
    near = F.max_pool2d(
        F.adaptive_max_pool2d((labels > 0)[:, None].float(), tuple(size)), 2 * RING + 1, 1, RING
    )
    near = F.interpolate(near, size=labels.shape[1:])[:, 0] > 0
    return torch.where(near & (labels == 0), count, labels)


def _grid_size(maps: Mapping[str, Tensor], stride: int) -> tuple[int, int]:
    y, x = next(iter(maps.values())).shape[2:]  # e0 lies at stride 2
    return 2 * y // stride, 2 * x // stride


def _tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
