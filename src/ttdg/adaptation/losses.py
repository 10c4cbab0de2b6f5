"""Entropies, cross-entropies and mixtures of predictions.

A prediction is a tensor of logits. The functions work on logits, so that they never take the logarithm of a rounded
probability. The argument `head` says what the logits mean: "softmax" for classes that exclude each other, "sigmoid"
for channels that are independent. A softmax over one channel raises `UserError` everywhere.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.errors import UserError

Head = Literal["softmax", "sigmoid"]


def uses_softmax(channels: int, head: Head) -> bool:
    """True for a softmax head, which needs two channels: over one, softmax is 1 and has no gradient."""
    if head == "softmax" and channels == 1:
        raise UserError(
            'this network has one output channel, for which softmax is always 1; use head="sigmoid"'
        )
    return head == "softmax"


def check_entropy_form(form: str, head: Head) -> None:
    """Raise `UserError` for the half entropy −p log p of a softmax head; it is defined for sigmoid channels."""
    if form == "half" and head != "sigmoid":
        raise UserError(
            'entropy_form="half" is defined for sigmoid channels only; use head="sigmoid" or entropy_form="full"'
        )


def entropy(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Float[Tensor, "b *hw"]:
    """Entropy in nats: over the classes (softmax), or the mean over channels of the binary entropy (sigmoid)."""
    if uses_softmax(logits.shape[1], head):
        log_p = F.log_softmax(logits, 1)
        return -(log_p.exp() * log_p).sum(1)
    return binary_entropy(logits).mean(1)


def mean_entropy(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Float[Tensor, ""]:
    """Mean of `entropy` over images and pixels."""
    return entropy(logits, head).mean()


def binary_entropy(logits: Tensor) -> Tensor:
    """−p log p − (1−p) log(1−p) with p = σ(z), element by element."""
    return torch.sigmoid(logits) * F.softplus(-logits) + torch.sigmoid(-logits) * F.softplus(logits)


def half_entropy(logits: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b *hw"]:
    """−p log p of each sigmoid channel, averaged over the channels.

    Several published segmentation ports minimise this term instead of the binary entropy. Its maximum is at p = 1/e.
    It is here to reproduce their numbers and is never a default.
    """
    return (torch.sigmoid(logits) * F.softplus(-logits)).mean(1)


def hard_label_cross_entropy(
    logits: Float[Tensor, "b c *hw"], head: Head = "softmax"
) -> Float[Tensor, "b *hw"]:
    """Cross-entropy to the prediction's own hard labels (self-training on pseudo-labels)."""
    if uses_softmax(logits.shape[1], head):
        return -F.log_softmax(logits, 1).amax(1)
    return F.softplus(-logits.abs()).mean(1)


def max_entropy(classes: int, head: Head) -> float:
    """Entropy of a uniform prediction: ln C for softmax, ln 2 for sigmoid."""
    return math.log(classes if uses_softmax(classes, head) else 2)


def probabilities(logits: Float[Tensor, "b c *hw"], head: Head) -> Float[Tensor, "b c *hw"]:
    """Softmax over the channels or sigmoid of each channel."""
    return logits.softmax(1) if uses_softmax(logits.shape[1], head) else logits.sigmoid()


def soft_cross_entropy(
    logits: Float[Tensor, "b c *hw"], target: Float[Tensor, "b c *hw"], head: Head = "softmax"
) -> Float[Tensor, "b *hw"]:
    """−Σ q log p for each pixel, where q is the prediction of the logits `target`; mean over sigmoid channels."""
    if uses_softmax(logits.shape[1], head):
        return -(target.softmax(1) * F.log_softmax(logits, 1)).sum(1)
    return F.binary_cross_entropy_with_logits(logits, target.sigmoid(), reduction="none").mean(1)


def mean_soft_cross_entropy(
    logits: Float[Tensor, "b c *hw"], target: Float[Tensor, "b c *hw"], head: Head = "softmax"
) -> Float[Tensor, ""]:
    """Mean of `soft_cross_entropy` over images and pixels."""
    return soft_cross_entropy(logits, target, head).mean()


def mixture(
    members: Float[Tensor, "n b c *hw"], head: Head = "softmax", weights: Float[Tensor, "n b k"] | None = None
) -> Float[Tensor, "b c *hw"]:
    """Logits of the weighted mean of n predictions; without weights, of the plain mean.

    The weights are given for each image (k = 1) or for each channel of each image (k = c).
    """
    n = len(members)
    log_w = members.new_full((n, 1, 1), -math.log(n)) if weights is None else weights.log()
    log_w = log_w.reshape(*log_w.shape, *[1] * (members.dim() - 3))
    if uses_softmax(members.shape[2], head):
        return torch.logsumexp(F.log_softmax(members, 2) + log_w, 0)
    yes, no = (torch.logsumexp(F.logsigmoid(sign * members) + log_w, 0) for sign in (1, -1))
    return yes - no


def foreground(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Bool[Tensor, "b r *hw"]:
    """Predicted masks: one for every class except the first (the background), or one for every sigmoid channel."""
    if not uses_softmax(logits.shape[1], head):
        return logits > 0
    classes = torch.arange(1, logits.shape[1], device=logits.device)
    return logits.argmax(1, keepdim=True) == classes.view(-1, *[1] * (logits.dim() - 2))
