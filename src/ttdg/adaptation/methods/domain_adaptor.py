"""DomainAdaptor: BatchNorm statistics mixed as the data ask for, folded into γ and β, then one step of sharpening.

Zhang et al., DomainAdaptor: A Novel Approach to Test-time Adaptation, ICCV 2023.

AdaMixBN weighs source and batch statistics by how far instance, batch and source lie apart; generalised entropy
minimisation (GEM-T) takes the entropy at a temperature of twice the logits' spread.

Decisions: layers of the decoder take part as well; the mixture holds unbiased variances, as running ones are, while
γ' and β' are rectified for the biased one that the layer then divides by, so that the rectified layer is the mixed
one exactly; sigmoid channels are the two-class logits (z/2, −z/2), for which GEM's gradient grows with |z| (T is
clipped to [0.1, 20]) and `loss="entropy"` is there instead; GEM-Aug is left out. At batch 1, α is ½ in every layer.

A step lowers GEM at the temperature it was taken at. The loss of the next takes T anew from logits that have spread, so
the reported one may rise from step to step.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.adamix import Folding

Loss = Literal["gem-t", "gem-skd", "entropy"]
TEMPERATURES = (0.1, 20.0)


def gem(logits: Logits, loss: Loss, head: losses.Head) -> Tensor:
    """Per pixel: T²·H(softmax(z/T)), or with the plain prediction as target (SKD); T twice the spread of z."""
    if loss == "entropy":
        return losses.entropy(logits, head)
    z = logits if losses.by_softmax(logits.shape[1], head) else torch.stack([logits, -logits], 1) / 2
    T = (2 * z.detach().std(1, keepdim=True)).clamp(*TEMPERATURES)
    log_p = F.log_softmax(z / T, 1)
    target = log_p.exp() if loss == "gem-t" else z.detach().softmax(1)
    return -(T.square() * target * log_p).sum(1)


class DomainAdaptor(GradientAdapter):
    def __init__(self, network: nn.Module, *, lr: float, steps: int, loss: Loss, head: losses.Head) -> None:
        self.mode = Folding(network)
        batchnorm.use(network, self.mode)
        super().__init__(
            network, lambda logits: gem(logits, loss, head).mean(), batchnorm.affine(network),
            lr=lr, steps=steps, predict="after", optimiser=torch.optim.SGD,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        logits = super().__call__(images)
        self.mode.folded = True  # also where the call was a replay
        return logits

    def _adapt(self, images: Images) -> tuple[Logits, Tensor]:
        self.restart()
        self.mode.start(len(images))
        return super()._adapt(images)

    def _update(self, loss: Tensor) -> None:
        if not self.mode.folded:
            self.mode.fold()
        super()._update(loss)

    def reset(self) -> None:
        super().reset()
        self.mode.reset()


def domain_adaptor(
    network: nn.Module,
    *,
    lr: float = 1e-3,
    steps: int = 1,
    loss: Loss = "gem-t",
    head: losses.Head = "softmax",
) -> Adapter:
    return DomainAdaptor(network, lr=lr, steps=steps, loss=loss, head=head)


METHOD = Method(
    build=domain_adaptor,
    summary="data-driven mixture of source and batch statistics, then one step of temperature-scaled entropy",
    adapts="BatchNorm γ, β",
    norm="ADAMIX",
    memory=False,
    forwards=2,
    backwards=1,
    predict="after",
    paper="Zhang et al., ICCV 2023",
    origin="SGD 1e-3, 1 step, GEM-T, anew for each batch: as published",
    needs=("BatchNorm",),
    reset="episodic",
)
