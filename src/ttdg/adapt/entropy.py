"""Entropy of predictions from logits: per pixel, then averaged over everything."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Head = Literal["softmax", "sigmoid"]


def entropy(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Float[Tensor, "b *hw"]:
    """H(p) in nats: over classes (softmax), or the mean over channels of the binary entropy (sigmoid)."""
    if head == "softmax":
        log_p = F.log_softmax(logits, 1)
        return -(log_p.exp() * log_p).sum(1)
    return binary_entropy(logits).mean(1)


def binary_entropy(logits: Tensor) -> Tensor:
    """−p log p − (1−p) log(1−p), p = σ(z), without ever taking log of a rounded probability."""
    return torch.sigmoid(logits) * F.softplus(-logits) + torch.sigmoid(-logits) * F.softplus(logits)


def half_entropy(logits: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b *hw"]:
    """Only −p log p of each sigmoid channel: what several published segmentation ports minimise.

    It peaks at p = 1/e, so it is no entropy; here to imitate their numbers, never a default.
    """
    return (torch.sigmoid(logits) * F.softplus(-logits)).mean(1)


def largest(classes: int, head: Head) -> float:
    """The entropy of a uniform prediction."""
    return math.log(classes if head == "softmax" else 2)
