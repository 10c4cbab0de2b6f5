"""InTEnt: average predictions under several mixtures of source and test statistics, weighted by entropy.

Dong et al., Medical Image Segmentation with InTEnt: Integrated Entropy Weighting for Single Image Test-Time Adaptation,
CVPR Workshops 2024.

Decisions: Each image has its own weights; for sigmoid heads, each channel of each image has its own. Foreground and
background contribute equally to the entropy of a prediction that has both; every class except the first is foreground.
If all members have the same entropy, they have the same weight. The test statistics are those of the whole batch,
recorded in one forward pass that normalises with batch statistics.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.options import COUNT, HEAD, Option
from ttdg.networks import batchnorm


class RecordingMode:
    """BatchNorm with batch statistics, which are stored for each layer (with the unbiased variance)."""

    def __init__(self) -> None:
        self.statistics: dict[_BatchNorm, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise with the batch statistics and store them."""
        if batchnorm.has_too_few_values(x):
            self.statistics[layer] = batchnorm.running_statistics(layer)
            return batchnorm.EVAL(layer, x)
        mean, var = (torch.empty_like(buffer) for buffer in batchnorm.running_statistics(layer))
        y = batchnorm.batch_norm(layer, x, mean.zero_(), var.zero_(), training=True, momentum=1.0)
        self.statistics[layer] = mean, var
        return y


class GivenMode:
    """BatchNorm with given statistics for each layer; layers without an entry use the source statistics."""

    def __init__(self, statistics: dict[_BatchNorm, tuple[Tensor, Tensor]]) -> None:
        self.statistics = statistics

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise with the given statistics."""
        mean, var = self.statistics.get(layer) or batchnorm.running_statistics(layer)
        return batchnorm.batch_norm(layer, x, mean, var)


def interpolated_mode(record: RecordingMode, share: float) -> GivenMode:
    """Mode with (1−share)·source + share·test statistics in every layer, computed in one kernel."""
    layers = list(record.statistics)
    source = [buffer for layer in layers for buffer in batchnorm.running_statistics(layer)]
    test = [buffer for pair in record.statistics.values() for buffer in pair]
    values = iter(torch._foreach_lerp(source, test, share))
    return GivenMode({layer: (next(values), next(values)) for layer in layers})


def balanced_entropy(members: Float[Tensor, "n b c *hw"], head: losses.Head) -> Float[Tensor, "n b k"]:
    """½(mean entropy of the foreground + of the background); the mean over all pixels if one of them is empty."""
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
    balanced = (sums / sizes.clamp(min=1)).mean(0)
    return torch.where(sizes.amin(0) > 0, balanced, H.mean(2)).unflatten(0, members.shape[:2])


def entropy_weights(entropies: Float[Tensor, "n b k"]) -> Float[Tensor, "n b k"]:
    """Softmax over the members of their negative entropies, which are first scaled to [0, 1]."""
    low, high = entropies.amin(0), entropies.amax(0)
    return ((high - entropies) / (high - low).clamp(min=1e-12)).softmax(0)


class Intent:
    """The adapter of InTEnt. It keeps no state between calls.

    One call: forward pass that records the test statistics; one forward pass for each mixture of source and test
    statistics; mean of these predictions, weighted by their balanced entropies.
    """

    def __init__(self, network: nn.Module, members: int, head: losses.Head) -> None:
        self.network, self.head = network.eval(), head
        self.shares = torch.linspace(0, 1, members).tolist()  # of the test statistics
        self.layers = list(batchnorm.layers(network))
        batchnorm.use(network, batchnorm.EVAL)

    @torch.no_grad()
    def __call__(self, images: Images) -> Logits:
        """Return the logits of the weighted mean prediction."""
        try:
            self._use(record := RecordingMode())
            self.network(images)
            members = torch.stack([self._member(images, record, share) for share in self.shares])
        finally:
            self._use(batchnorm.EVAL)
        weights = entropy_weights(balanced_entropy(members, self.head))
        return losses.mixture(members, self.head, weights)

    def _member(self, images: Images, record: RecordingMode, share: float) -> Logits:
        self._use(interpolated_mode(record, share))
        return self.network(images)

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    def reset(self) -> None:
        """Do nothing: no state changes."""


def intent(network: nn.Module, *, members: int = 6, head: losses.Head = "softmax") -> Adapter:
    """Build the adapter of method `intent`."""
    return Intent(network, members, head)


METHOD = Method(
    build=intent,
    summary="predictions under six mixtures of source and test statistics, weighted by balanced entropy",
    adapts="nothing",
    norm="MIX(0…1)",
    memory=False,
    forwards=7,
    backwards=0,
    predict="before",
    volumes=True,
    access="source-free",
    paper="Dong et al., CVPR Workshops 2024",
    origin="six mixtures, temperature 1: as published",
    options={
        "members": Option(
            "number of mixtures, evenly spaced from source to test statistics", "the paper", COUNT
        ),
        "head": HEAD,
    },
    needs=("BatchNorm",),
    reset="episodic",
    grid={"members": (2, 3, 6)},
)
