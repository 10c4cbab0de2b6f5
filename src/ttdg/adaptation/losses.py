"""Entropy, cross-entropy and mixtures of predictions. A prediction is its logits, so that nothing takes the log of a
rounded probability; a head says what the logits mean. One channel has no softmax, and every function says so."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ttdg.errors import UserError

Head = Literal["softmax", "sigmoid"]


def by_softmax(channels: int, head: Head) -> bool:
    """Whether the channels are classes of one softmax, which takes two: of one it is always 1 and has no gradient."""
    if head == "softmax" and channels == 1:
        raise UserError('this network gives one channel, for which softmax is always 1; say head="sigmoid"')
    return head == "softmax"


def entropy(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Float[Tensor, "b *hw"]:
    """H(p) in nats: over classes (softmax), or the mean over channels of the binary entropy (sigmoid)."""
    if by_softmax(logits.shape[1], head):
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


def surprise_of_likeliest(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Float[Tensor, "b *hw"]:
    """Cross-entropy to the prediction's own hard labels: −log of the likeliest class, or of each channel's side."""
    if by_softmax(logits.shape[1], head):
        return -F.log_softmax(logits, 1).amax(1)
    return F.softplus(-logits.abs()).mean(1)


def max_entropy(classes: int, head: Head) -> float:
    """The entropy of a uniform prediction."""
    return math.log(classes if by_softmax(classes, head) else 2)


def probabilities(logits: Float[Tensor, "b c *hw"], head: Head) -> Float[Tensor, "b c *hw"]:
    return logits.softmax(1) if by_softmax(logits.shape[1], head) else logits.sigmoid()


def soft_cross_entropy(
    logits: Float[Tensor, "b c *hw"], target: Float[Tensor, "b c *hw"], head: Head = "softmax"
) -> Float[Tensor, "b *hw"]:
    """−Σ q log p per pixel, q being the prediction of the logits `target`; sigmoid channels are averaged."""
    if by_softmax(logits.shape[1], head):
        return -(target.softmax(1) * F.log_softmax(logits, 1)).sum(1)
    return F.binary_cross_entropy_with_logits(logits, target.sigmoid(), reduction="none").mean(1)


def mixture(
    members: Float[Tensor, "n b c *hw"], head: Head = "softmax", weights: Float[Tensor, "n b k"] | None = None
) -> Float[Tensor, "b c *hw"]:
    """Logits whose prediction is the weighted mean of the members' predictions; without weights, the plain mean.

    Weights are one for an image (k = 1) or one for each of its channels.
    """
    n = len(members)
    log_w = members.new_full((n, 1, 1), -math.log(n)) if weights is None else weights.log()
    log_w = log_w.reshape(*log_w.shape, *[1] * (members.dim() - 3))
    if by_softmax(members.shape[2], head):
        return torch.logsumexp(F.log_softmax(members, 2) + log_w, 0)
    yes, no = (torch.logsumexp(F.logsigmoid(sign * members) + log_w, 0) for sign in (1, -1))
    return yes - no


def foreground(logits: Float[Tensor, "b c *hw"], head: Head = "softmax") -> Bool[Tensor, "b r *hw"]:
    """The masks a prediction stands for: every class but the background, or every sigmoid channel."""
    if not by_softmax(logits.shape[1], head):
        return logits > 0
    classes = torch.arange(1, logits.shape[1], device=logits.device)
    return logits.argmax(1, keepdim=True) == classes.view(-1, *[1] * (logits.dim() - 2))
