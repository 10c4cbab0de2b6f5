"""Structures as binary problems, as the published sigmoid networks have them, and the masked loss on them.

CBMT, DPL and CPR predict nested structures with one sigmoid each: the disc, which includes the cup, and the cup. A
softmax head has labels that exclude each other (background, rim, cup). Its labels are read as nested in their order:
structure k consists of all labels from k on. On fundus images these are the disc and the cup, as published; with two
labels there is one structure.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ttdg.adaptation import losses

Maps = Float[Tensor, "b k h w"]


def structure_logits(logits: Float[Tensor, "b l h w"], head: losses.Head) -> Maps:
    """Logits of the structures: those of a sigmoid head, or log P(label ≥ k) − log P(label < k) of a softmax head."""
    if not losses.uses_softmax(logits.shape[1], head):
        return logits
    ends = range(1, logits.shape[1])
    return torch.stack([logits[:, k:].logsumexp(1) - logits[:, :k].logsumexp(1) for k in ends], 1)


def structures(logits: Float[Tensor, "b l h w"], head: losses.Head) -> Maps:
    """Probabilities of the structures."""
    return structure_logits(logits, head).sigmoid()


def masked_loss(logits: Maps, labels: Maps, weights: Maps, focal: float = 0.0) -> Float[Tensor, ""]:
    """Weighted mean over all pixels and structures of the binary cross-entropy, with a focal factor if `focal` > 0.

    The focal factor is (1−p)^focal where the label is 1 and p^focal where it is 0. If all weights are 0 the loss is
    NaN, and adapters skip the step.
    """
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    if focal:
        p = logits.sigmoid()
        loss = loss * torch.where(labels > 0.5, 1 - p, p) ** focal
    return (weights * loss).sum() / weights.sum()
