"""SAR: TENT with unsure pixels left out, a sharpness-aware step, and recovery after a collapse.

Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023.

Decisions: A sample is a pixel (for sigmoid heads, a pixel in one channel). Both thresholds are fractions of the
largest entropy, ln C: the margin is 0.4 as published, and the recovery threshold is 0.2/ln 1000 ≈ 0.029. The
published recovery threshold of 0.2, for 1000 classes, is above the entropy of any healthy segmentation; with it, SAR
would reset at every step and become PTBN. A well-trained model has even lower entropy (about 0.02 on the demo's
hospitals, with C = 3), so the threshold is also at most half of the first loss of the stream. A stream that starts
with a loss of 0 never recovers. `counts` reports the number of recoveries.

Only BatchNorm is adapted; the paper also adapts GroupNorm and LayerNorm. Layers under the name `layer4`, the last
stage of a ResNet, are not adapted, as published. The decoder is adapted, and so are all stages of an encoder
without that name. A batch without a sure pixel updates nothing. The host waits once per step, for the loss.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import HEAD, LR, STEPS, WEIGHT, Option, Range
from ttdg.networks import batchnorm

FROZEN = "layer4"  # modules under this name are not adapted
DECAY = 0.9  # of the exponential average of the loss
COLLAPSED = 0.5  # the recovery threshold is at most this fraction of the first loss


class Sar(GradientAdapter):
    """The adapter of SAR.

    State: γ and β outside `layer4`, SGD with momentum, the exponential average `ema` of the loss, the `first` loss of
    the stream, and `counts`. One call repeats `steps` times: forward pass; gradient of the mean entropy of the sure
    pixels; ascent by ρ along that gradient; second forward pass; gradient of the mean entropy of the pixels that are
    sure in both passes; back to the point before the ascent; SGD step with the second gradient; reset to the source if
    `ema` falls below the threshold. It returns the logits of the last first pass, before the update.
    """

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
        self.ema: float | None = None
        self.first: float | None = None
        batchnorm.use(network, batchnorm.BATCH)
        sgd = partial(torch.optim.SGD, momentum=0.9)
        super().__init__(
            network, self._entropies, adapted_parameters(network), lr=lr, steps=steps, optimiser=sgd
        )

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return the logits from before the last update."""
        for _ in range(self.steps):
            logits = self._step(images)
        return logits

    def _step(self, images: Images) -> Logits:
        with torch.enable_grad():
            logits = self.network(images)
            entropies = self._entropies(logits)
            sure = self.sure(entropies, logits.shape[1])
            uphill = self.gradients(masked_mean(entropies, sure))
        before = [parameter.detach().clone() for parameter in self.parameters]
        ascend(self.parameters, uphill, self.rho)
        with torch.enable_grad():
            entropies = self._entropies(self.network(images))
            loss = masked_mean(entropies, sure & self.sure(entropies, logits.shape[1]))
            gradients = self.gradients(loss)
        self.loss = loss.detach()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        self._update_or_recover(self.loss.item(), gradients, logits.shape[1])
        return logits.detach()

    def _update_or_recover(self, loss: float, gradients: list[Tensor], classes: int) -> None:
        """Skip a loss that is not finite; otherwise step, and reset if the average loss is below the threshold."""
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
        """Entropy of each sample: of a pixel, or of a pixel in one sigmoid channel."""
        return losses.entropy(logits) if self.head == "softmax" else losses.binary_entropy(logits)

    def sure(self, entropies: Tensor, classes: int) -> Tensor:
        """Mask of the samples with an entropy below the margin."""
        return entropies.detach() < self.margin * losses.max_entropy(classes, self.head)

    def reset(self) -> None:
        """Return to the source and forget the losses of the stream."""
        super().reset()
        self.ema = self.first = None


def adapted_parameters(network: nn.Module) -> list[nn.Parameter]:
    """γ and β of every BatchNorm layer outside the last stage of the encoder."""
    frozen = {id(p) for name, p in network.named_parameters() if FROZEN in name.split(".")}
    return [p for p in batchnorm.affine_parameters(network) if id(p) not in frozen]


def masked_mean(values: Tensor, mask: Bool[Tensor, "..."]) -> Tensor:
    """Mean over the mask; NaN for an empty mask, so that the batch is skipped."""
    return torch.where(mask, values, 0).sum() / mask.sum()


@torch.no_grad()
def ascend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rho: float) -> None:
    """Move the parameters in place to θ + ρ·g/‖g‖, with the norm over all parameters together."""
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
    """Build the adapter of method `sar`."""
    return Sar(network, rho=rho, margin=margin, recover=recover, head=head, lr=lr, steps=steps)


METHOD = Method(
    build=sar,
    summary="entropy of sure pixels, minimised by sharpness-aware steps, with recovery from collapse",
    adapts="BatchNorm γ, β outside layer4",
    norm="BATCH",
    memory=True,
    forwards=2,
    backwards=2,
    predict="before",
    volumes=True,
    access="source-free",
    paper="Niu et al., ICLR 2023",
    origin="ρ 0.05, margin 0.4·ln C, momentum 0.9 as published; recovery at 0.029·ln C is the published 0.2 "
    "rescaled from 1000 classes, and at half the first loss at most; lr 1e-3 (published 2.5e-4 at batch 64) from "
    "segmentation ports",
    published={"lr": 2.5e-4},
    options={
        "lr": LR.with_origin("a segmentation port (TEGDA's code); the paper has 2.5e-4 at batch 64"),
        "steps": STEPS.with_origin("the paper"),
        "rho": Option("length ρ of the ascent in the sharpness-aware step", "the paper", WEIGHT),
        "margin": Option(
            "pixels count as sure below this fraction of the largest entropy ln C; inf takes all pixels",
            "the paper",
            Range(0.0, endless=True),
        ),
        "recover": Option(
            "reset to the source when the average loss is below this fraction of ln C; -inf never resets",
            "the paper, rescaled: 0.2 for 1000 classes is 0.2/ln 1000 of the largest entropy",
            Range(endless=True),
        ),
        "head": HEAD,
    },
    needs=("BatchNorm",),
)
