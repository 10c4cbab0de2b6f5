"""DomainAdaptor: BatchNorm statistics mixed as the data ask for, folded into γ and β, then one step of sharpening.

Zhang et al., DomainAdaptor: A Novel Approach to Test-time Adaptation, ICCV 2023.

AdaMixBN weighs source and batch statistics by how far instance, batch and source lie apart; generalised entropy
minimisation (GEM-T) takes the entropy at a temperature of twice the logits' spread.

Decisions: layers of the decoder take part as well; the mixture holds unbiased variances, as running ones are, while
γ' and β' are rectified for the biased one that the layer then divides by, so that the rectified layer is the mixed
one exactly; sigmoid channels are the two-class logits (z/2, −z/2), for which GEM's gradient grows with |z| (T is
clipped to [0.1, 20]) and `loss="entropy"` is there instead; GEM-Aug is left out. At batch 1, α is ½ in every layer.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ttdg.adapt import batchnorm, entropy
from ttdg.adapt.adapter import Adapter, GradientAdapter, Images, Logits, Method

Loss = Literal["gem-t", "gem-skd", "entropy"]
TEMPERATURES = (0.1, 20.0)


class AdaMix:
    """α·source + (1−α)·batch statistics, α from the data; nothing is written."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if batchnorm.too_few(x):
            return batchnorm.EVAL(layer, x)
        _, _, mean, var = mixed(layer, x)
        return batchnorm.normalise(layer, x, mean, var)


class Rectify:
    """The same values, but with γ and β moved so that the layer may divide by the batch's own statistics."""

    def __call__(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if not batchnorm.too_few(x):
            batch_mean, batch_var, mean, var = mixed(layer, x)
            with torch.no_grad():
                batch_std, std = roots = torch._foreach_add([batch_var, var], layer.eps)
                torch._foreach_sqrt_(roots)
                layer.bias.addcmul_(batch_mean.sub_(mean).div_(std), layer.weight)
                layer.weight.mul_(batch_std.div_(std))
        return batchnorm.BATCH(layer, x)


ADAMIX, RECTIFY = AdaMix(), Rectify()


@torch.no_grad()
def mixed(layer: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The batch's mean and biased variance, and the mixed mean and variance; all from one reduction of the input.

    A layer's α is known only when all layers before it are normalised, so nothing here can be done for all layers at
    once: some 20 small kernels a layer, which is what the method costs beyond its passes.
    """
    n, pixels = x.numel() // x.shape[1], x[0, 0].numel()
    own_var, own_mean = torch.var_mean(x.reshape(*x.shape[:2], -1), 2, correction=min(1, pixels - 1))
    between, mean = torch.var_mean(own_mean, 0, correction=0)
    biased = torch.add(between, own_var.mean(0), alpha=(pixels - 1) / pixels)
    var, (source_mean, source_var) = biased * (n / (n - 1)), batchnorm.running(layer)
    own_std, std, source_std = torch._foreach_sqrt([own_var, var, source_var])
    beta = batch_weight((own_mean, own_std), (mean, std), (source_mean, source_std))
    return mean, biased, source_mean.lerp(mean, beta), source_var.lerp(var, beta)


def source_weight(
    own: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor], source: tuple[Tensor, Tensor]
) -> Float[Tensor, ""]:
    """α: near 1 where the batch looks like the source, given means and deviations of images, batch and source."""
    return 1 - batch_weight(own, batch, source)


def batch_weight(
    own: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor], source: tuple[Tensor, Tensor]
) -> Float[Tensor, ""]:
    """1 − α: with d the squared distance of two of them, the mean over images of d_bs / (d_bs + d_is + d_ib)."""
    flat = [part.flatten() for kind in zip(own, batch, source, strict=True) for part in kind]
    points = torch.cat(flat).view(2, len(own[0]) + 2, -1)  # images, then batch, then source
    to_both = (points[:, :, None] - points[:, None, -2:]).square_().sum((0, 2, 3))  # of images, d_ib + d_is
    shift = to_both[-2]  # d_bs
    return (shift / (to_both[:-2] + shift)).nan_to_num_(0.0).mean()


def gem(logits: Logits, loss: Loss, head: entropy.Head) -> Tensor:
    """Per pixel: T²·H(softmax(z/T)), or with the plain prediction as target (SKD); T twice the spread of z."""
    if loss == "entropy":
        return entropy.entropy(logits, head)
    z = logits if head == "softmax" else torch.stack([logits, -logits], 1) / 2
    z = z - z.mean(1, keepdim=True).detach()
    T = (2 * z.detach().std(1, keepdim=True)).clamp(*TEMPERATURES)
    log_p = F.log_softmax(z / T, 1)
    target = log_p.exp() if loss == "gem-t" else z.detach().softmax(1)
    return -(T.square() * target * log_p).sum(1)


class DomainAdaptor(GradientAdapter):
    def __init__(self, network: nn.Module, *, lr: float, steps: int, loss: Loss, head: entropy.Head) -> None:
        batchnorm.use(network, ADAMIX)
        self.layers = [layer for layer in batchnorm.layers(network) if layer.affine]
        super().__init__(
            network, lambda logits: gem(logits, loss, head).mean(), batchnorm.affine(network),
            lr=lr, steps=steps, predict="after", optimiser=torch.optim.SGD,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        self.restart()
        self._use(RECTIFY)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = self.objective(self.network(images))
            self._use(batchnorm.BATCH)
            self._update(loss)
        with torch.no_grad():
            return self.network(images)

    def _use(self, mode: batchnorm.Mode) -> None:
        for layer in self.layers:
            layer.mode = mode  # type: ignore[assignment]

    def reset(self) -> None:
        super().reset()
        self._use(ADAMIX)


def domain_adaptor(
    network: nn.Module,
    *,
    lr: float = 1e-3,
    steps: int = 1,
    loss: Loss = "gem-t",
    head: entropy.Head = "softmax",
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
