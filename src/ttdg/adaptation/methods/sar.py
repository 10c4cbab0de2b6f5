"""SAR: TENT made stable, by unsure pixels left out, a sharpness-aware step, and recovery from collapse.

Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023.

Decisions: a sample is a pixel (of each channel, for sigmoid heads). The published recovery threshold, 0.2 for a
thousand classes, lies above the entropy of any healthy segmentation: taken over as it is, it resets at every step and
SAR becomes PTBN. So both thresholds are shares of the largest entropy ln C: margin 0.4 as published, recovery
0.2/ln 1000 ≈ 0.029. A well trained model is surer still (some 0.02 on the demo's hospitals, seen or not, with C = 3),
so recovery is never asked for above half the loss that the stream began with, before anything had moved; a stream that
begins with an image of no doubt at all never recovers. `counts` says how often others did. Only BatchNorm adapts
(published: GroupNorm and LayerNorm too). Layers named `layer4`, the ResNet's last stage, stay as they are, as
published; the decoder adapts, and so does all of an encoder without such a name. A batch without a sure pixel updates
nothing. The host waits once a step, for the loss that decides.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.networks import batchnorm

FROZEN = "layer4"
DECAY = 0.9  # of the running entropy
COLLAPSED = 0.5  # of the loss the stream began with: no higher is recovery asked for


class Sar(GradientAdapter):
    def __init__(
        self,
        network: nn.Module,
        *,
        rho: float,
        margin: float,
        recover: float,
        head: losses.Head,
        lr: float,
        steps: int,
    ) -> None:
        self.rho, self.margin, self.recover, self.head = rho, margin, recover, head
        self.counts = {"steps": 0, "resets": 0, "skipped": 0}
        self.ema: float | None = None  # of the loss
        self.first: float | None = None  # loss of the stream
        batchnorm.use(network, batchnorm.BATCH)
        sgd = partial(torch.optim.SGD, momentum=0.9)
        super().__init__(network, self._entropies, adapted(network), lr=lr, steps=steps, optimiser=sgd)

    def __call__(self, images: Images) -> Logits:
        for _ in range(self.steps):
            logits = self._step(images)
        return logits

    def _step(self, images: Images) -> Logits:
        with torch.enable_grad():
            logits = self.network(images)
            H = self._entropies(logits)
            sure = self.sure(H, logits.shape[1])
            climb = self.gradients(mean(H, sure))
        before = [parameter.detach().clone() for parameter in self.parameters]
        ascend(self.parameters, climb, self.rho)
        with torch.enable_grad():
            H = self._entropies(self.network(images))
            loss = mean(H, sure & self.sure(H, logits.shape[1]))
            descend = self.gradients(loss)
        self.loss = loss.detach()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        self._decide(self.loss.item(), descend, logits.shape[1])
        return logits.detach()

    def _decide(self, loss: float, gradients: list[Tensor], classes: int) -> None:
        """Step, skip or recover."""
        if not math.isfinite(loss):
            self.counts["skipped"] += 1
            return
        self.counts["steps"] += 1
        self.first = loss if self.first is None else self.first
        self.ema = loss if self.ema is None else DECAY * self.ema + (1 - DECAY) * loss
        self.apply(gradients)
        if self.ema < min(self.recover * losses.max_entropy(classes, self.head), COLLAPSED * self.first):
            self.restart()
            self.ema = None
            self.counts["resets"] += 1

    def _entropies(self, logits: Logits) -> Tensor:
        """Of each sample: a pixel, or a pixel in one sigmoid channel."""
        return losses.entropy(logits) if self.head == "softmax" else losses.binary_entropy(logits)

    def sure(self, H: Tensor, classes: int) -> Tensor:
        return H.detach() < self.margin * losses.max_entropy(classes, self.head)

    def reset(self) -> None:
        super().reset()
        self.ema = self.first = None


def adapted(network: nn.Module) -> list[nn.Parameter]:
    """γ and β of every BatchNorm layer outside the encoder's last stage."""
    frozen = {id(p) for name, p in network.named_parameters() if FROZEN in name.split(".")}
    return [p for p in batchnorm.affine(network) if id(p) not in frozen]


def mean(values: Tensor, where: Bool[Tensor, "..."]) -> Tensor:
    """NaN where there is nothing to average, which is how a batch is skipped."""
    return torch.where(where, values, 0).sum() / where.sum()


@torch.no_grad()
def ascend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rho: float) -> None:
    """θ + ρ·g/‖g‖, the norm over all parameters together."""
    norm = torch.stack(torch._foreach_norm(list(gradients))).norm()
    steps = torch._foreach_mul(list(gradients), rho / (norm + 1e-12))
    torch._foreach_add_(list(parameters), list(steps))


def sar(
    network: nn.Module,
    *,
    lr: float = 1e-3,
    steps: int = 1,
    rho: float = 0.05,
    margin: float = 0.4,
    recover: float = 0.2 / math.log(1000),
    head: losses.Head = "softmax",
) -> Adapter:
    return Sar(network, rho=rho, margin=margin, recover=recover, head=head, lr=lr, steps=steps)


METHOD = Method(
    build=sar,
    summary="entropy of sure pixels, minimised where it is flat, with recovery from collapse",
    adapts="BatchNorm γ, β outside layer4",
    norm="BATCH",
    memory=True,
    forwards=2,
    backwards=2,
    predict="before",
    paper="Niu et al., ICLR 2023",
    origin="ρ 0.05, margin 0.4·ln C, momentum 0.9 as published; recovery at 0.029·ln C is the published 0.2 "
    "rescaled from 1000 classes, and at half the first loss at most; lr 1e-3 (published 2.5e-4 at batch 64) from "
    "segmentation ports",
    needs=("BatchNorm",),
)
