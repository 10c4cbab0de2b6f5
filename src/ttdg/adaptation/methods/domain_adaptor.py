"""DomainAdaptor: mix BatchNorm statistics by a data-driven weight, fold them into γ and β, take one GEM step.

Zhang et al., DomainAdaptor: A Novel Approach to Test-time Adaptation, ICCV 2023.

AdaMixBN weights source and batch statistics by the distances between instance, batch and source statistics.
Generalised entropy minimisation (GEM-T) takes the entropy at a temperature of twice the standard deviation of the
logits.

Decisions: Layers of the decoder are adapted too. The mixture uses unbiased variances, as the running variances are.
γ' and β' are computed for the biased variance by which the layer then divides, so that the folded layer equals the
mixed layer. A sample is a pixel. The loss is mean(H)·mean(T²) over all samples, as in the authors' code, whose
broadcast multiplies H and T² of every pair of samples; the gradient of a sample is then proportional to 1/T.
`weighting="sample"` is mean(H·T²), with a gradient proportional to T: sure samples weigh more instead of less. Sigmoid
channels are treated as two-class logits (z/2, −z/2), for which T is √2·|z| and the size of the gradient depends on |z|
alone; T is clipped to [0.1, 20], and `loss="entropy"` is an alternative. GEM-Aug is left out. At batch 1, α is ½ in
every layer.

A step lowers GEM at the temperature of that step. The next step computes T from the new logits, so the reported loss
may rise from step to step.
"""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import HEAD, LR, STEPS, Option
from ttdg.networks import batchnorm
from ttdg.networks.batchnorm.adamix import FoldingMode

Loss = Literal["gem-t", "gem-skd", "entropy"]
Weighting = Literal["released", "sample"]
TEMPERATURES = (0.1, 20.0)  # T is clipped to this interval


def gem(
    logits: Logits, loss: Loss, head: losses.Head, weighting: Weighting = "released"
) -> Float[Tensor, ""]:
    """Generalised entropy: mean(H)·mean(T²) with H of softmax(z/T) and T twice the standard deviation of z.

    For the weighting "sample" it is mean(H·T²). For "gem-skd" the target is the plain prediction, without gradient;
    "entropy" is the mean of the ordinary entropy.
    """
    if loss == "entropy":
        return losses.entropy(logits, head).mean()
    z = logits if losses.uses_softmax(logits.shape[1], head) else torch.stack([logits, -logits], 1) / 2
    T = (2 * z.detach().std(1, keepdim=True)).clamp(*TEMPERATURES)
    log_p = F.log_softmax(z / T, 1)
    target = log_p.exp() if loss == "gem-t" else z.detach().softmax(1)
    H, squares = -(target * log_p).sum(1), T.square().squeeze(1)
    return H.mean() * squares.mean() if weighting == "released" else (H * squares).mean()


class DomainAdaptor(GradientAdapter):
    """The adapter of DomainAdaptor.

    State: γ and β of BatchNorm, kept only until the next batch. One call: restore γ and β of the source; forward pass
    with AdaMixBN; fold the mixed statistics into γ' and β', after which the layers use batch statistics; `steps` SGD
    steps on the GEM loss; forward pass for the prediction.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        loss: Loss,
        weighting: Weighting,
        head: losses.Head,
    ) -> None:
        self.mode = FoldingMode(network)
        batchnorm.use(network, self.mode)
        super().__init__(
            network, partial(gem, loss=loss, head=head, weighting=weighting), batchnorm.affine_parameters(network),
            lr=lr, steps=steps, predict="after", optimiser=torch.optim.SGD,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch from the source and return its logits after the update."""
        logits = super().__call__(images)
        self.mode.folded = True  # set here too, because a replayed CUDA graph does not run `_update`
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
        """Return to the source."""
        super().reset()
        self.mode.reset()


def domain_adaptor(
    network: nn.Module,
    *,
    lr: float = 1e-3,
    steps: int = 1,
    loss: Loss = "gem-t",
    weighting: Weighting = "released",
    head: losses.Head = "softmax",
) -> Adapter:
    """Build the adapter of method `domainadaptor`."""
    return DomainAdaptor(network, lr=lr, steps=steps, loss=loss, weighting=weighting, head=head)


METHOD = Method(
    build=domain_adaptor,
    summary="data-driven mixture of source and batch statistics, then one step of temperature-scaled entropy",
    adapts="BatchNorm γ, β",
    norm="ADAMIX",
    memory=False,
    forwards=2,
    backwards=1,
    predict="after",
    volumes=True,
    access="source-free",
    paper="Zhang et al., ICCV 2023",
    origin="SGD 1e-3, 1 step, GEM-T as mean(H)·mean(T²), anew for each batch: as released",
    options={
        "lr": LR.with_origin("the authors' code (SGD without momentum)"),
        "steps": STEPS.with_origin("the authors' code"),
        "loss": Option(
            "GEM with its own prediction as target, GEM with the unscaled prediction as target, or entropy",
            "the authors' code: gem-t; entropy is this project's, for sigmoid heads",
        ),
        "weighting": Option(
            "mean of GEM over samples: mean(H)·mean(T²), or mean(H·T²); without effect for the loss entropy",
            "the authors' code: released, by its broadcast; sample is each sample by its own T, as the formula reads",
        ),
        "head": HEAD,
    },
    needs=("BatchNorm",),
    reset="episodic",
)
