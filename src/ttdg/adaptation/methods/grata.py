"""GraTa: step along a consistency gradient, with a rate that follows its agreement with the entropy gradient.

Chen et al., Gradient Alignment Improves Test-Time Adaptation for Medical Image Segmentation, AAAI 2025.

Decisions: The entropy is the full one: binary and averaged over channels, or that of the softmax. The authors' code
minimises −p log p only, summed over channels; `entropy_form="half"` reproduces it for sigmoid heads. The virtual step
is the raw gradient, so that the sum makes it longer. Photometric views are drawn on the device and keep each image's
range, so that they work for any normalisation of the input. The noise has a standard deviation of up to 0.05, as in the
authors' code, whose library takes the drawn "variance" as the standard deviation; `noise="strong"` takes its square
root (up to 0.22). Teacher and student are both evaluated at the virtual step, as published.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses, views
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import HEAD, LR, NOISE, SEED, STEPS, Option
from ttdg.networks import batchnorm


def gradient_cosine(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Cosine of two gradients over all parameters together; 0 if one of them is zero."""
    x, y = (torch.cat([g.flatten() for g in gradients]) for gradients in (a, b))
    return torch.nn.functional.cosine_similarity(x, y, dim=0, eps=1e-20)


def aligned_rate(lr: float, cos: float) -> float:
    """Learning rate lr·(cos + 1)²/4: `lr` for equal directions, 0 for opposite ones."""
    return lr * (cos + 1) ** 2 / 4


class Grata(GradientAdapter):
    """The adapter of GraTa.

    State: γ and β of BatchNorm, Adam, a random generator, and the last cosine `cos`. One call repeats `steps` times:
    entropy gradient at θ; virtual step of length 1 along it; mean prediction over six views as teacher; gradient of the
    cross-entropy between a photometric view and the teacher; back to θ; Adam step with the consistency gradient at
    the rate that the cosine of the two gradients gives. Then a forward pass gives the prediction.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        head: losses.Head,
        form: Literal["full", "half"],
        noise: views.Noise,
        seed: int,
    ) -> None:
        self.head, self.form, self.noise, self.seed = head, form, noise, seed
        self.generator = torch.Generator(next(network.parameters()).device)
        self.cos = 0.0
        batchnorm.use(network, batchnorm.BATCH)
        consistency = partial(losses.mean_soft_cross_entropy, head=head)
        parameters = batchnorm.affine_parameters(network)
        super().__init__(network, consistency, parameters, lr=lr, steps=steps, predict="after")

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return its logits after the update."""
        for _ in range(self.steps):
            self._step(images)
        with torch.no_grad():
            return self.network(images)

    def _step(self, images: Images) -> None:
        with torch.enable_grad():
            auxiliary = self.gradients(self._entropy(self.network(images)))
        before = [parameter.detach().clone() for parameter in self.parameters]
        with torch.no_grad():
            torch._foreach_sub_(self.parameters, auxiliary)
            teacher = views.average_over_views(self.network, images, self.head)
        with torch.enable_grad():
            view = views.photometric_view(images, self.generator, self.noise)
            loss = self.objective(self.network(view), teacher)
            pseudo = self.gradients(loss)
        self.loss = loss.detach()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        cos = gradient_cosine(auxiliary, pseudo).item()
        if cos == cos:  # NaN if any value of the step was not finite
            self.cos = cos
            self.apply(pseudo, aligned_rate(self.lr, cos))

    def _entropy(self, logits: Logits) -> Tensor:
        if self.form == "half":
            return losses.half_entropy(logits).mean() * logits.shape[1]
        return losses.entropy(logits, self.head).mean()

    def reset(self) -> None:
        """Return to the source and restart the random generator."""
        super().reset()
        self.generator.manual_seed(self.seed)


def grata(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    head: losses.Head = "softmax",
    entropy_form: Literal["full", "half"] = "full",
    noise: views.Noise = "released",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `grata`."""
    losses.check_entropy_form(entropy_form, head)
    return Grata(network, lr=lr, steps=steps, head=head, form=entropy_form, noise=noise, seed=seed)


METHOD = Method(
    build=grata,
    summary="consistency of views, with a step scaled by its agreement with the entropy gradient",
    adapts="BatchNorm γ, β",
    norm="BATCH",
    memory=True,
    forwards=9,
    backwards=2,
    predict="after",
    access="source-free",
    paper="Chen et al., AAAI 2025",
    origin="Adam 1e-4, six views, photometric strengths: as released; full entropy, averaged over channels, is ours",
    options={
        "lr": LR.with_origin("the authors' code (Adam)"),
        "steps": STEPS.with_origin("the authors' code"),
        "head": HEAD,
        "entropy_form": Option(
            "entropy of the auxiliary gradient: full, or −p log p summed over sigmoid channels",
            "this project: full, because −p log p is not an entropy; the authors' code has half",
        ),
        "noise": NOISE,
        "seed": SEED,
    },
    needs=("BatchNorm",),
)
