"""Value types that are shared by several packages.

Shape annotations use the same letters everywhere: m graphs, n nodes, h node width, d universe points, b images,
c channels or classes, r regions.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Regions = Mapping[str, tuple[int, ...]]
"""Maps the name of a scored region to the labels that form it, e.g. {"disc": (1, 2), "cup": (2,)}."""


@dataclass(frozen=True)
class GraphBatch:
    """A batch of `m` graphs 𝒢_i = (𝒱_i, 𝒜_i) with node labels Y_i, padded to `n` nodes each.

    Padded rows, where `mask` is False, affect no result and receive no gradient.
    """

    nodes: Float[Tensor, "m n h"]  # 𝒱
    edges: Float[Tensor, "m n n"]  # 𝒜, symmetric, zero diagonal
    labels: Int[Tensor, "m n"]  # Y, 1..classes; 0 on padding
    mask: Bool[Tensor, "m n"]


@dataclass(frozen=True)
class Batch:
    """Normalised images with their case names and, if available, label masks."""

    images: Float[Tensor, "b c h w"]
    masks: Int[Tensor, "b h w"] | None
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What a method needs besides the network, fitted on source images: tensors and settings."""

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    fitted: Mapping[str, Any] = field(
        default_factory=dict
    )  # how it was fitted, e.g. number of steps; {} if unknown

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names and bytes of the tensors. A judge stores that of the prior it was fitted with."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            digest.update(name.encode())
            tensor = self.tensors[name].detach().cpu().contiguous()
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
