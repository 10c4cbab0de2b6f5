"""A3-TTA: align features with the most similar features of sure predictions, beside a self-adaptive teacher.

Wu et al., A3-TTA: Adaptive Anchor Alignment Test-Time Adaptation for Image Segmentation, IEEE TIP 2025.

Decisions: Images are scored from the forward pass of the batch; the authors' code runs each image alone for it. An
image enters the bank before its anchor is searched, as in the authors' code, so that it may be its own anchor. Each
image is blended by its own cosine (the authors' code takes that of the first image for all) and standardised by its
own anchor. The network uses batch statistics; the running statistics, which the authors' training mode updates, are
never read. Dropout is off. All weights are trained, as in the authors' code, which gives Adam those of the last layer
too. The share by which the teacher follows the student is clamped to [0, 1].
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
from ttdg.adaptation.options import HEAD, LR, STEPS, WEIGHT, Option
from ttdg.networks import batchnorm, split
from ttdg.networks.averaging import ema_update

CAPACITY = 40  # of the bank
ENTROPY_WEIGHT = 5.0  # of the difference between the entropies of aligned and plain prediction


def class_overlap_entropy(logits: Float[Tensor, "b c *hw"], head: losses.Head) -> Float[Tensor, "b"]:
    """Class-compact density: mean of −M log M, where M = PᵀP/pixels is the overlap of the classes.

    It is small for predictions that are sure, whose classes do not overlap.
    """
    p = losses.probabilities(logits, head).flatten(2)
    P = p if head == "softmax" else torch.stack([p, 1 - p], 2)  # (b, c, n) or (b, c, 2, n)
    M = P @ P.mT / P.shape[-1]
    return torch.special.entr(M).flatten(1).mean(1)


def align_to_anchor(
    deepest: Float[Tensor, "b c y x"], anchor: Float[Tensor, "b c y x"], cosine: Float[Tensor, "b"]
) -> Float[Tensor, "b c y x"]:
    """(1−ω)·f + ω·f*, standardised by mean and standard deviation of the anchor f*; ω is the cosine."""
    blended = torch.lerp(deepest, anchor, cosine[:, None, None, None])
    std, mean = torch.std_mean(anchor, (1, 2, 3), keepdim=True)
    return (blended - mean) / std.clamp(min=1e-6)


class A3(GradientAdapter):
    """The adapter of A3-TTA.

    State: the weights of the student (`network`) and of the `teacher`, Adam, and a bank of the deepest feature maps
    with the surest predictions. One call repeats `steps` times: prediction of the teacher; forward pass; push the
    deepest maps to the bank; nearest map in the bank as anchor; prediction from the aligned map; Adam step on
    CE(aligned, plain) + 5·|H(aligned) − H(plain)| + consistency·CE(plain, teacher); the teacher's encoder moves
    towards the student's by the share CE(plain, teacher). Then a forward pass gives the prediction.
    """

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, consistency: float, head: losses.Head
    ) -> None:
        self.consistency, self.head = consistency, head
        self.bank = Bank(CAPACITY)
        batchnorm.use_if_any(split.require_split(network), batchnorm.BATCH)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.encoder: list[tuple[Tensor, Tensor]] = []  # (teacher, student) parameters; set by the first pass
        super().__init__(
            network,
            self._loss,
            list(network.parameters()),
            lr=lr,
            steps=steps,
            predict="after",
            optimiser=partial(torch.optim.Adam, betas=(0.5, 0.999)),
        )

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return its logits after the update."""
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
            self.bank.push(features[-1].detach(), -class_overlap_entropy(logits.detach(), self.head))
            cosines, anchors = self.bank.nearest(features[-1], 1)
            deepest = align_to_anchor(features[-1], anchors[:, 0], cosines[:, 0])
            aligned = split.decode(self.network, (*features[:-1], deepest), images)
            loss, teacher_loss = self._losses(logits, aligned, taught)
        self._update(loss)
        self._update_teacher(teacher_loss)

    def _encode(self, images: Images) -> split.Features:
        """Encode the images; the first call finds the encoder's parameters, the only ones the teacher follows."""
        if self.encoder:
            return split.encode(self.network, images)
        with split.modules_used(self.network) as used:
            features = split.encode(self.network, images)
        encoder = {id(p) for module in used for p in module.parameters(recurse=False)}
        pairs = zip(self.teacher.parameters(), self.network.parameters(), strict=True)
        self.encoder = [(slow, p) for slow, p in pairs if id(p) in encoder]
        return features

    def _loss(self, logits: Logits, aligned: Logits, taught: Logits) -> Tensor:
        return self._losses(logits, aligned, taught)[0]

    def _losses(self, logits: Logits, aligned: Logits, taught: Logits) -> tuple[Tensor, Tensor]:
        """Total loss, and CE(student, teacher) without gradient; cross-entropies are divided by log₂ C."""
        scale = max(math.log2(logits.shape[1]), 1.0) if self.head == "softmax" else 1.0
        alignment = losses.soft_cross_entropy(aligned, logits, self.head).mean() / scale
        difference = losses.entropy(aligned, self.head) - losses.entropy(logits, self.head)
        teacher_loss = losses.soft_cross_entropy(logits, taught, self.head).mean() / scale
        total = alignment + ENTROPY_WEIGHT * difference.abs().mean() + self.consistency * teacher_loss
        return total, teacher_loss.detach()

    @torch.no_grad()
    def _update_teacher(self, teacher_loss: Float[Tensor, ""]) -> None:
        slow, fast = ([pair[i] for pair in self.encoder] for i in (0, 1))
        ema_update(slow, fast, teacher_loss.nan_to_num(0.0).clamp(0, 1))

    @torch.no_grad()
    def reset(self) -> None:
        """Return student and teacher to the source, with an empty bank."""
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
    """Build the adapter of method `a3-tta`."""
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
    access="source-free",
    paper="Wu et al., IEEE TIP 2025",
    origin="Adam 1e-4 (0.5, 0.999), bank of 40, weights 1, 5, 1 as released for M&Ms",
    options={
        "lr": LR.with_origin("the authors' code (Adam, betas 0.5 and 0.999)"),
        "steps": STEPS.with_origin("the authors' code"),
        "consistency": Option(
            "weight of the cross-entropy to the teacher",
            "the authors' code for M&Ms; 0.2 for prostate",
            WEIGHT,
        ),
        "head": HEAD,
    },
    needs=("encode/decode",),
)
