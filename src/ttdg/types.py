"""The values that travel between layers. One alphabet of shapes everywhere:
m graphs, n nodes, h node width, d universe, b images, c channels or classes, r regions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

Regions = Mapping[str, tuple[int, ...]]
"""What is scored: a name and the labels it unites, e.g. {"disc": (1, 2), "cup": (2,)}."""


@dataclass(frozen=True)
class GraphBatch:
    """`m` graphs, padded to `n` nodes each: 𝒢_i = (𝒱_i, 𝒜_i) with labels Y_i.

    Padding is inert: rows outside `mask` change no result and receive no gradient.
    """

    nodes: Float[Tensor, "m n h"]  # 𝒱
    edges: Float[Tensor, "m n n"]  # 𝒜, symmetric, zero diagonal
    labels: Int[Tensor, "m n"]  # Y, 1..classes; 0 on padding
    mask: Bool[Tensor, "m n"]


@dataclass(frozen=True)
class Batch:
    """Images ready for a network, with what is known of them."""

    images: Float[Tensor, "b c h w"]
    masks: Int[Tensor, "b h w"] | None
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What a method needs from source time besides the network: tensors, and the settings to build it from."""

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    fitted: Mapping[str, Any] = field(default_factory=dict)  # how, such as in how many steps; {} if unknown
