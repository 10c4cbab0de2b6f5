"""CoTTA: a student that learns from the averaged views of its own slow copy, and forgets at random back to the source.

Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022.

Decisions: views are flips and quarter turns, turned back before they are averaged (the published, classifying form
averages logits of views that are not turned back); predictions are averaged, not logits; whether views are worth it is
decided by the source's confidence on foreground and its border, where sure background cannot drown it; the plain
view is one of the six, so the teacher makes 6 passes or 1. The answer is the teacher's. The source's weights are
kept once, for the anchor, the restoring and the reset alike. A batch whose loss is not finite moves no weight: neither
the student's nor the teacher's, and none goes back to the source.
"""

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from ttdg.adaptation import losses, views
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.networks import batchnorm
from ttdg.networks.averaging import approach

BORDER = 5  # pixels across which the foreground is widened before its confidence is taken


def confidence(logits: Float[Tensor, "b c h w"], head: losses.Head) -> Float[Tensor, ""]:
    """Mean probability of the prediction on foreground and border; on everything where there is no foreground."""
    p = losses.probabilities(logits, head)
    sure = p.amax(1) if head == "softmax" else torch.maximum(p, 1 - p).mean(1)
    inside = losses.foreground(logits, head).any(1, keepdim=True).to(p)
    near = F.max_pool2d(inside, BORDER, 1, BORDER // 2)[:, 0]
    return torch.where(near.sum() > 0, (sure * near).sum() / near.sum().clamp(min=1), sure.mean())


class Cotta(GradientAdapter):
    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, threshold: float, momentum: float, restore: float,
        head: losses.Head, seed: int,
    ) -> None:  # fmt: skip
        self.threshold, self.momentum, self.restore = threshold, momentum, restore
        self.head, self.seed = head, seed
        if batchnorm.present(network):
            batchnorm.use(network, batchnorm.BATCH)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.generator = torch.Generator(next(network.parameters()).device)

        def objective(logits: Logits, target: Logits) -> Tensor:
            return losses.soft_cross_entropy(logits, target, head).mean()

        super().__init__(network, objective, list(network.parameters()), lr=lr, steps=steps)

    def __call__(self, images: Images) -> Logits:
        for _ in range(self.steps):
            with torch.no_grad():
                answer = self._taught(images)
            with torch.enable_grad():
                loss = self.objective(self.network(images), answer)
            self._update(loss)
            self._follow(finite := self.loss.isfinite())
            self._forget(finite)
        return answer

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """The teacher's answer, as after any batch, from which nobody learns."""
        return self._taught(images)

    def _taught(self, images: Images) -> Logits:
        """The teacher's prediction, averaged over views where the source is unsure of this batch."""
        source = functional_call(self.network, self._source, (images,))
        if confidence(source, self.head) < self.threshold:
            return views.average_over_views(self.teacher, images, self.head)
        return self.teacher(images)

    @torch.no_grad()
    def _follow(self, finite: Bool[Tensor, ""]) -> None:
        approach(list(self.teacher.parameters()), self.parameters, (1 - self.momentum) * finite)

    @torch.no_grad()
    def _forget(self, finite: Bool[Tensor, ""]) -> None:
        """Each number of each weight goes back to the source with probability `restore`. All weights side by side: at
        a small batch the host decides, and four calls a weight were a third of the whole."""
        now, source = (torch.cat([x.reshape(-1) for x in each]) for each in (self.parameters, self._start))
        drawn = torch.rand(now.shape, generator=self.generator, device=now.device)
        kept = torch.where((drawn < self.restore) & finite, source, now).split(
            [p.numel() for p in self.parameters]
        )
        kept = [part.view(p.shape) for part, p in zip(kept, self.parameters, strict=True)]
        torch._foreach_copy_(self.parameters, kept)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        torch._foreach_copy_(list(self.teacher.parameters()), self.parameters)
        self.generator.manual_seed(self.seed)


def cotta(
    network: nn.Module,
    *,
    lr: float = 1e-5,
    steps: int = 1,
    threshold: float = 0.9,
    momentum: float = 0.999,
    restore: float = 0.01,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    return Cotta(
        network,
        lr=lr,
        steps=steps,
        threshold=threshold,
        momentum=momentum,
        restore=restore,
        head=head,
        seed=seed,
    )


METHOD = Method(
    build=cotta,
    summary="learns from its slow copy's predictions averaged over views; weights fall back to the source at random",
    adapts="all weights",
    norm="BATCH",
    memory=True,
    forwards=8,
    backwards=1,
    predict="before",
    paper="Wang et al., CVPR 2022",
    origin="momentum 0.999, restore 0.01 as published for CIFAR; lr 1e-5 and 6 views from segmentation ports "
    "(published 1e-3 and 32); threshold 0.9 (published 0.92) on foreground and border is ours",
    reset="continual",
)
