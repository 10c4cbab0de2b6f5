"""InTEnt: predictions under several mixtures of source and test statistics, weighed by their balanced entropy.

Dong et al., Medical Image Segmentation with InTEnt: Integrated Entropy Weighting for Single Image Test-Time Adaptation,
CVPR Workshops 2024.

Decisions: weights are each image's own, and each channel's own for sigmoid heads; foreground and background count
alike in the entropy of a prediction that has both (any class but the first is foreground); where all members are
equally sure, they weigh alike. The statistics are the whole batch's, recorded in one pass under batch statistics.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.networks import batchnorm


class RecordingMode:
    """Batch statistics, remembered layer by layer (the variance unbiased, as running ones are)."""

    def __init__(self) -> None:
        self.statistics: dict[_BatchNorm, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if batchnorm.has_too_few_values(x):
            self.statistics[layer] = batchnorm.running(layer)
            return batchnorm.EVAL(layer, x)
        mean, var = (torch.empty_like(buffer) for buffer in batchnorm.running(layer))
        y = batchnorm.batch_norm(layer, x, mean.zero_(), var.zero_(), training=True, momentum=1.0)
        self.statistics[layer] = mean, var
        return y


class GivenMode:
    """Statistics by layer; the source's for a layer that has none."""

    def __init__(self, statistics: dict[_BatchNorm, tuple[Tensor, Tensor]]) -> None:
        self.statistics = statistics

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        mean, var = self.statistics.get(layer) or batchnorm.running(layer)
        return batchnorm.batch_norm(layer, x, mean, var)


def between(record: RecordingMode, share: float) -> GivenMode:
    """(1−share)·source + share·test statistics in every layer, in one kernel."""
    layers = list(record.statistics)
    source = [buffer for layer in layers for buffer in batchnorm.running(layer)]
    test = [buffer for pair in record.statistics.values() for buffer in pair]
    values = iter(torch._foreach_lerp(source, test, share))
    return GivenMode({layer: (next(values), next(values)) for layer in layers})


def balanced_entropy(members: Float[Tensor, "n b c h w"], head: losses.Head) -> Float[Tensor, "n b k"]:
    """½(mean over foreground + mean over background); the plain mean where one of them is empty."""
    flat = members.flatten(0, 1)
    if head == "softmax":
        H, inside = losses.entropy(flat)[:, None], losses.foreground(flat).any(1, keepdim=True)
    else:
        H, inside = losses.binary_entropy(flat), flat > 0
    H, inside = H.flatten(2), inside.flatten(2).to(H.dtype)
    sums, sizes = (
        torch.stack([(H * inside).sum(2), (H * (1 - inside)).sum(2)]),
        torch.stack([inside.sum(2), (1 - inside).sum(2)]),
    )
    halves = (sums / sizes.clamp(min=1)).mean(0)
    return torch.where(sizes.amin(0) > 0, halves, H.mean(2)).unflatten(0, members.shape[:2])


def weights(e: Float[Tensor, "n b k"]) -> Float[Tensor, "n b k"]:
    """Softmax over members of the entropies' negatives, brought to [0, 1] first."""
    low, high = e.amin(0), e.amax(0)
    return ((high - e) / (high - low).clamp(min=1e-12)).softmax(0)


class Intent:
    def __init__(self, network: nn.Module, members: int, head: losses.Head) -> None:
        self.network, self.head = network.eval(), head
        self.shares = torch.linspace(0, 1, members).tolist()
        self.layers = list(batchnorm.layers(network))
        batchnorm.use(network, batchnorm.EVAL)

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        try:
            self._use(record := RecordingMode())
            self.network(images)
            members = torch.stack([self._member(images, record, share) for share in self.shares])
        finally:
            self._use(batchnorm.EVAL)
        return losses.mixture(members, self.head, weights(balanced_entropy(members, self.head)))

    def _member(self, images: Images, record: RecordingMode, share: float) -> Logits:
        self._use(between(record, share))
        return self.network(images)

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    def reset(self) -> None:
        """Nothing was changed."""


def intent(network: nn.Module, *, members: int = 6, head: losses.Head = "softmax") -> Adapter:
    return Intent(network, members, head)


METHOD = Method(
    build=intent,
    summary="predictions under six mixtures of source and test statistics, weighed by balanced entropy",
    adapts="nothing",
    norm="MIX(0…1)",
    memory=False,
    forwards=7,
    backwards=0,
    predict="before",
    paper="Dong et al., CVPR Workshops 2024",
    origin="six mixtures, temperature 1: as published",
    needs=("BatchNorm",),
    reset="episodic",
    grid={"members": (2, 3, 6)},
)
