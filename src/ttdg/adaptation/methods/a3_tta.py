"""A3-TTA: features drawn to an anchor, the most similar one among those the model was surest of.

Wu et al., A3-TTA: Adaptive Anchor Alignment Test-Time Adaptation for Image Segmentation, IEEE TIP 2025.

Decisions: an image is scored from the batch's own forward (the release runs each image alone for it) and enters the
bank before its anchor is sought there, as in the release, so it may find itself; each image is blended by its own
cosine (the release takes the first image's for all) and standardised by its own anchor; the network runs in BATCH: the
running statistics that its training mode would move are never read; dropout stays off; all weights learn (the release
leaves the last layer out); the share by which the teacher follows is clamped to [0, 1].
"""

import copy
import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.memory import Bank
from ttdg.networks import batchnorm, split
from ttdg.networks.averaging import approach

CAPACITY = 40
SHAPE = 5.0  # weight of agreeing entropies


def doubt(logits: Float[Tensor, "b c *hw"], head: losses.Head) -> Float[Tensor, "b"]:
    """Class-compact density: the mean of −M log M, M = PᵀP/pixels the classes' overlap. Small where they lie apart."""
    p = losses.probabilities(logits, head).flatten(2)
    P = p if head == "softmax" else torch.stack([p, 1 - p], 2)  # (b, c, n) or (b, c, 2, n)
    M = P @ P.mT / P.shape[-1]
    return torch.special.entr(M).flatten(1).mean(1)


def anchored(
    deepest: Float[Tensor, "b c y x"], anchor: Float[Tensor, "b c y x"], cosine: Float[Tensor, "b"]
) -> Float[Tensor, "b c y x"]:
    """(1−ω)·f + ω·f*, standardised by the anchor's mean and deviation."""
    blended = torch.lerp(deepest, anchor, cosine[:, None, None, None])
    std, mean = torch.std_mean(anchor, (1, 2, 3), keepdim=True)
    return (blended - mean) / std.clamp(min=1e-6)


class A3(GradientAdapter):
    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, consistency: float, head: losses.Head
    ) -> None:
        self.consistency, self.head = consistency, head
        self.bank = Bank(CAPACITY)
        if batchnorm.present(split.require_split(network)):
            batchnorm.use(network, batchnorm.BATCH)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.encoder: list[tuple[Tensor, Tensor]] = []
        adam = partial(torch.optim.Adam, betas=(0.5, 0.999))
        super().__init__(
            network,
            lambda *logits: self._losses(*logits)[0],
            list(network.parameters()),
            lr=lr,
            steps=steps,
            predict="after",
            optimiser=adam,
        )

    def __call__(self, images: Images) -> Logits:
        for _ in range(self.steps):
            self._step(images)
        with torch.no_grad():
            return self.network(images)

    def _step(self, images: Images) -> None:
        with torch.no_grad():
            taught = self.teacher(images)
        with torch.enable_grad():
            features = self._encode(images)
            logits = split.decode(self.network, features, images)
            if not (logits + taught).isfinite().all():
                return
            self.bank.push(features[-1].detach(), -doubt(logits.detach(), self.head))
            cosines, anchors = self.bank.nearest(features[-1], 1)
            blended = anchored(features[-1], anchors[:, 0], cosines[:, 0])
            aligned = split.decode(self.network, (*features[:-1], blended), images)
            loss, apart = self._losses(logits, aligned, taught)
        self._update(loss)
        self._follow(apart)

    def _encode(self, images: Images) -> split.Features:
        """The first time, with an eye on which weights take part: the teacher follows in those alone."""
        if self.encoder:
            return split.encode(self.network, images)
        with split.modules_used(self.network) as seen:
            features = split.encode(self.network, images)
        mine = {id(p) for module in seen for p in module.parameters(recurse=False)}
        both = zip(self.teacher.parameters(), self.network.parameters(), strict=True)
        self.encoder = [(slow, p) for slow, p in both if id(p) in mine]
        return features

    def _losses(self, logits: Logits, aligned: Logits, taught: Logits) -> tuple[Tensor, Tensor]:
        """The loss, and its part that lies between student and teacher; cross-entropies in units of log₂ C."""
        scale = max(math.log2(logits.shape[1]), 1.0) if self.head == "softmax" else 1.0
        alike = losses.soft_cross_entropy(aligned, logits, self.head).mean() / scale
        shape = losses.entropy(aligned, self.head) - losses.entropy(logits, self.head)
        apart = losses.soft_cross_entropy(logits, taught, self.head).mean() / scale
        return alike + SHAPE * shape.abs().mean() + self.consistency * apart, apart.detach()

    @torch.no_grad()
    def _follow(self, apart: Float[Tensor, ""]) -> None:
        """The teacher's encoder moves by the share that student and teacher lie apart."""
        slow, fast = ([pair[i] for pair in self.encoder] for i in (0, 1))
        approach(slow, fast, apart.nan_to_num(0.0).clamp(0, 1))

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        torch._foreach_copy_(list(self.teacher.parameters()), self.parameters)
        self.bank.clear()


def a3_tta(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    consistency: float = 1.0,
    head: losses.Head = "softmax",
) -> Adapter:
    return A3(network, lr=lr, steps=steps, consistency=consistency, head=head)


METHOD = Method(
    build=a3_tta,
    summary="features aligned with the most similar trusted ones, beside a self-adaptive teacher",
    adapts="all weights",
    norm="BATCH",
    memory=True,
    forwards=4,
    backwards=2,
    predict="after",
    paper="Wu et al., IEEE TIP 2025",
    origin="Adam 1e-4 (0.5, 0.999), bank of 40, weights 1, 5, 1 as released for M&Ms",
    needs=("encode/decode",),
)
