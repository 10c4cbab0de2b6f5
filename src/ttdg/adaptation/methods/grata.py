"""GraTa: the step is a consistency gradient, and its length follows how well it agrees with entropy's.

Chen et al., Gradient Alignment Improves Test-Time Adaptation for Medical Image Segmentation, AAAI 2025.

Decisions: full binary entropy, averaged over channels (or that of the softmax), where the release minimises −p log p
alone, summed over channels (`entropy_form="half"` imitates it, for sigmoid heads; the virtual step is the raw gradient,
so the sum makes it longer); photometric views are drawn on the device and keep each image's range, so any
normalisation of the input will do; teacher and student both stand at the virtual step, as published.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses, views
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.errors import UserError
from ttdg.networks import batchnorm


def gradient_cosine(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Of two gradients, over all parameters together; 0 where one of them vanishes."""
    x, y = (torch.cat([g.flatten() for g in gradients]) for gradients in (a, b))
    return torch.nn.functional.cosine_similarity(x, y, dim=0, eps=1e-20)


def aligned_rate(lr: float, cos: float) -> float:
    """lr where the gradients agree, 0 where they oppose each other."""
    return lr * (cos + 1) ** 2 / 4


class Grata(GradientAdapter):
    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        head: losses.Head,
        form: Literal["full", "half"],
        seed: int,
    ) -> None:
        self.head, self.form, self.seed = head, form, seed
        self.generator = torch.Generator(next(network.parameters()).device)
        self.cos = 0.0
        batchnorm.use(network, batchnorm.BATCH)

        def consistency(logits: Logits, target: Logits) -> Tensor:
            return losses.soft_cross_entropy(logits, target, head).mean()

        super().__init__(network, consistency, batchnorm.affine(network), lr=lr, steps=steps, predict="after")

    def __call__(self, images: Images) -> Logits:
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
            loss = self.objective(self.network(views.photometric_view(images, self.generator)), teacher)
            pseudo = self.gradients(loss)
        self.loss = loss.detach()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        cos = gradient_cosine(auxiliary, pseudo).item()  # NaN if anything on the way here was
        if cos == cos:
            self.cos = cos
            self.apply(pseudo, aligned_rate(self.lr, cos))

    def _entropy(self, logits: Logits) -> Tensor:
        if self.form == "half":
            return losses.half_entropy(logits).mean() * logits.shape[1]
        return losses.entropy(logits, self.head).mean()

    def reset(self) -> None:
        super().reset()
        self.generator.manual_seed(self.seed)


def grata(
    network: nn.Module,
    *,
    lr: float = 1e-4,
    steps: int = 1,
    head: losses.Head = "softmax",
    entropy_form: Literal["full", "half"] = "full",
    seed: int = 0,
) -> Adapter:
    if entropy_form == "half" and head != "sigmoid":
        raise UserError(
            'entropy_form="half" is of sigmoid channels; say head="sigmoid", or entropy_form="full"'
        )
    return Grata(network, lr=lr, steps=steps, head=head, form=entropy_form, seed=seed)


METHOD = Method(
    build=grata,
    summary="consistency of views, its step scaled by agreement with the entropy's gradient",
    adapts="BatchNorm γ, β",
    norm="BATCH",
    memory=True,
    forwards=9,
    backwards=2,
    predict="after",
    paper="Chen et al., AAAI 2025",
    origin="Adam 1e-4, six views, photometric strengths: as published; full entropy, averaged over channels, is ours",
    needs=("BatchNorm",),
)
