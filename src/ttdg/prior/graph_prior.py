"""What every prior has: a projection of features to nodes, universe embeddings 𝒰, edges and affinity.

`ttdg.prior.module.MorphologyPrior` is the prior of this project. `ttdg.prior.literal.LiteralPrior` is that of the
paper as printed. They differ in their universe, in the nodes that they sample, and in how they match them.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ttdg.errors import UserError
from ttdg.fields import wrong_field
from ttdg.matching import universe_scores
from ttdg.prior.affinity import Affinity
from ttdg.prior.edges import Edges
from ttdg.prior.resizing import grid_size, resize_bilinear
from ttdg.prior.sampling import Nodes
from ttdg.types import GraphBatch, Part

P = TypeVar("P", bound="GraphPrior")
S = TypeVar("S", bound="GraphSpec")
AGAIN = "fit the part 'prior' again"
LITERAL = "class_matrix"  # a setting that only the part of a `LiteralPrior` has


@dataclass(frozen=True)
class GraphSpec:
    """The settings that all priors share.

    Levels are named e0 to e4 (maps of the encoder) and d0 to d4 (maps of the decoder).
    """

    labels: int  # labels of the benchmark, including background
    channels: tuple[int, ...]  # channels of the levels
    levels: tuple[str, ...] = ("e2", "e3", "d2")
    node_dim: int = 128
    points: int = 40  # universe points per tissue
    per_tissue: int = 32  # maximum nodes per tissue and image
    stride: int = 4  # of the node grid, in pixels


class GraphPrior(nn.Module, ABC):
    """Projection of features, universe embeddings 𝒰, edges and affinity.

    Args:
        spec: the settings.
        universe: makes the first 𝒰, at its place in the order in which random parameters are drawn.
    """

    def __init__(self, spec: GraphSpec, universe: Callable[[], Tensor]) -> None:
        super().__init__()
        if spec.per_tissue > spec.points:
            raise UserError(
                f"{spec.per_tissue} nodes per tissue cannot all be matched to {spec.points} points; raise `points`"
            )
        self.spec = spec
        self.inputs = nn.ModuleList(nn.Conv2d(c, spec.node_dim, 1) for c in spec.channels)
        self.norm = nn.LayerNorm(spec.node_dim)
        self.output = nn.Linear(spec.node_dim, spec.node_dim)
        self.universe = nn.Parameter(universe())
        self.edges = Edges(spec.node_dim)
        self.affinity = Affinity(spec.node_dim)

    def project(
        self, maps: Mapping[str, Float[Tensor, "b _c _y _x"]], image: Sequence[int] | None = None
    ) -> Float[Tensor, "b h y x"]:
        """Project the chosen levels to one map of unit vectors on the node grid.

        Args:
            maps: feature maps by level, in any precision.
            image: (height, width) of the images before padding; the result is cropped to them.
        """
        levels = [maps[name].to(self.norm.weight.dtype) for name in self.spec.levels]
        size = grid_size(maps, self.spec.stride)
        x = sum(resize_bilinear(conv(level), size) for conv, level in zip(self.inputs, levels, strict=True))
        x = self.output(F.relu(self.norm(x.movedim(1, -1))))  # type: ignore[union-attr]
        x = F.normalize(x, dim=-1).movedim(-1, 1)
        if image is None:
            return x
        return x[..., : -(-image[0] // self.spec.stride), : -(-image[1] // self.spec.stride)]

    @abstractmethod
    def universe_points(self) -> Float[Tensor, "d h"]:
        """The universe embeddings with which nodes are compared."""

    @abstractmethod
    def first_universe(self, generator: torch.Generator) -> Float[Tensor, "d h"]:
        """A universe before training."""

    @abstractmethod
    def nodes(self, projected: Float[Tensor, "b c y x"], labels: Int[Tensor, "b h w"]) -> Nodes:
        """Sample nodes of a projected map by the labels of the images."""

    @abstractmethod
    def match(self, nodes: Nodes) -> Float[Tensor, "b n d"]:
        """U*: the joint matching of all graphs to the universe."""

    def graphs(self, nodes: Nodes) -> GraphBatch:
        """The nodes with their edges."""
        edges = self.edges(nodes.features, nodes.mask, nodes.coordinates)
        return GraphBatch(nodes.features, edges, nodes.labels, nodes.mask)

    def scores_of_all(self, nodes: Nodes) -> Float[Tensor, "b n d"]:
        """𝒱𝒰ᵀ for all nodes and points, whatever their tissue."""
        return universe_scores(nodes.features, self.universe_points())

    def with_random_universe(self: P, seed: int = 0) -> P:
        """A copy with the same projection and an untrained universe, as a control."""
        other = copy.deepcopy(self)
        other.universe.data.copy_(self.first_universe(torch.Generator().manual_seed(seed)))
        return other

    def to_part(self) -> Part:
        """The prior as a part of a checkpoint."""
        return Part(self.state_dict(), asdict(self.spec))

    def with_state(self: P, part: Part) -> P:
        """Load the tensors of a part and return this prior in eval mode."""
        try:
            self.load_state_dict(dict(part.tensors))
        except RuntimeError as error:
            raise UserError(f"the universe does not fit its settings ({error}); {AGAIN}") from None
        return self.eval()


def default_levels(widths: Mapping[str, int], levels: tuple[str, ...]) -> tuple[str, ...]:
    """The usual levels, or the deeper maps of the encoder for a network without a decoder."""
    return levels if all(name in widths for name in levels) else ("e2", "e3", "e4")


def spec_of(kind: type[S], part: Part) -> S:
    """The settings of a part; refused if they have other fields or kinds, or are too large for its tensors."""
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in part.settings.items()
    }
    try:
        spec = kind(**settings)
    except TypeError as error:
        raise UserError(f"the settings of the universe are damaged ({error}); {AGAIN}") from None
    if (name := wrong_field(spec)) is None:
        most = sum(value.numel() for value in part.tensors.values())
        sizes: dict[str, tuple[int, ...]] = {
            "labels": (spec.labels,),
            "points": (spec.points,),
            "node_dim": (spec.node_dim,),
        }
        sizes |= {"channels": spec.channels, "stride": (spec.stride,), "per_tissue": (spec.per_tissue,)}
        sizes["points"] += (spec.labels * spec.points * spec.node_dim,)
        name = next(
            (name for name, found in sizes.items() if not all(1 <= size <= most for size in found)), None
        )
    if name is not None:
        raise UserError(f"the settings of the universe are damaged ({name!r} is no valid value); {AGAIN}")
    return spec
