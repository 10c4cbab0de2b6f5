"""CoTTA: train on a slow teacher's predictions, averaged over views; restore random weights to the source.

Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022.

Decisions: The views are flips and quarter turns, undone before the mean. The published code, for classification,
averages logits of random views that it does not undo. Probabilities are averaged, not logits. The source's confidence
decides whether to average over views; it is measured on the foreground and its border only, because sure background
would otherwise dominate it. The identity is one of the six views, so the teacher makes 6 passes or 1. The prediction
is the teacher's. The source weights are stored once, for the confidence, the restoring and the reset. A batch whose
loss is not finite changes no weight of student or teacher and restores none.
"""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from ttdg.adaptation import losses, views
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.options import HEAD, LR, SEED, SHARE, STEPS, Option
from ttdg.networks import batchnorm
from ttdg.networks.averaging import ema_update

BORDER = (
    5  # side of the square, in pixels, by which the foreground is dilated before its confidence is measured
)


def confidence(logits: Float[Tensor, "b c h w"], head: losses.Head) -> Float[Tensor, ""]:
    """Mean probability of the predicted label on foreground and border; on all pixels if there is no foreground."""
    p = losses.probabilities(logits, head)
    certainty = p.amax(1) if head == "softmax" else torch.maximum(p, 1 - p).mean(1)
    inside = losses.foreground(logits, head).any(1, keepdim=True).to(p)
    near = F.max_pool2d(inside, BORDER, 1, BORDER // 2)[:, 0]
    mean_near = (certainty * near).sum() / near.sum().clamp(min=1)
    return torch.where(near.sum() > 0, mean_near, certainty.mean())


class Cotta(GradientAdapter):
    """The adapter of CoTTA.

    State: the weights of the student (`network`) and of the `teacher`, Adam, and a random generator. One call repeats
    `steps` times: prediction of the teacher, averaged over views if the source is not confident; cross-entropy of the
    student to it; Adam step; the teacher follows the student by an exponential average; each weight of the student
    returns to the source with probability `restore`. It returns the last prediction of the teacher.
    """

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, threshold: float, momentum: float, restore: float,
        head: losses.Head, seed: int,
    ) -> None:  # fmt: skip
        self.threshold, self.momentum, self.restore = threshold, momentum, restore
        self.head, self.seed = head, seed
        batchnorm.use_if_any(network, batchnorm.BATCH)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.generator = torch.Generator(next(network.parameters()).device)
        objective = partial(losses.mean_soft_cross_entropy, head=head)
        super().__init__(network, objective, list(network.parameters()), lr=lr, steps=steps)

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return the teacher's logits from before the last update."""
        for _ in range(self.steps):
            with torch.no_grad():
                target = self._teacher_prediction(images)
            with torch.enable_grad():
                loss = self.objective(self.network(images), target)
            self._update(loss)
            finite = self.loss.isfinite()
            self._update_teacher(finite)
            self._restore_at_random(finite)
        return target

    @torch.no_grad()
    def predict_frozen(self, images: Images) -> Logits:
        """Return the teacher's logits without an update."""
        return self._teacher_prediction(images)

    def _teacher_prediction(self, images: Images) -> Logits:
        """The teacher's prediction, averaged over views if the source is not confident about this batch."""
        source = functional_call(self.network, self._source, (images,))
        if confidence(source, self.head) < self.threshold:
            return views.average_over_views(self.teacher, images, self.head)
        return self.teacher(images)

    @torch.no_grad()
    def _update_teacher(self, finite: Bool[Tensor, ""]) -> None:
        ema_update(list(self.teacher.parameters()), self.parameters, (1 - self.momentum) * finite)

    @torch.no_grad()
    def _restore_at_random(self, finite: Bool[Tensor, ""]) -> None:
        """Reset each scalar of each weight to the source with probability `restore`.

        All weights are concatenated, because at small batches the number of kernel calls sets the time: four calls for
        each weight took a third of the whole method.
        """
        now, source = (torch.cat([x.reshape(-1) for x in group]) for group in (self.parameters, self._start))
        uniform = torch.rand(now.shape, generator=self.generator, device=now.device)
        parts = torch.where((uniform < self.restore) & finite, source, now).split(
            [p.numel() for p in self.parameters]
        )
        values = [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]
        torch._foreach_copy_(self.parameters, values)

    @torch.no_grad()
    def reset(self) -> None:
        """Return student, teacher and random generator to their start."""
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
    """Build the adapter of method `cotta`."""
    return Cotta(
        network, lr=lr, steps=steps, threshold=threshold, momentum=momentum, restore=restore, head=head, seed=seed
    )  # fmt: skip


METHOD = Method(
    build=cotta,
    summary="trains on a slow teacher's predictions averaged over views; random weights return to the source",
    adapts="all weights",
    norm="BATCH",
    memory=True,
    forwards=8,
    backwards=1,
    predict="before",
    access="source-free",
    paper="Wang et al., CVPR 2022",
    origin="momentum 0.999, restore 0.01 as published for CIFAR; lr 1e-5 and 6 views from segmentation ports "
    "(published 1e-3 and 32); threshold 0.9 (published 0.92) on foreground and border is ours",
    published={"lr": 1e-3, "threshold": 0.92},
    options={
        "lr": LR.with_origin("a segmentation port (TEGDA's code); the authors' code has 1e-3 for CIFAR"),
        "steps": STEPS.with_origin("the authors' code"),
        "threshold": Option(
            "average over views if the source's confidence is below this value",
            "a segmentation port; the authors' code has 0.92, measured on all pixels",
            SHARE,
        ),
        "momentum": Option("share that the teacher keeps of its own weights", "the authors' code", SHARE),
        "restore": Option(
            "probability with which a weight returns to the source after a step",
            "the authors' code for CIFAR",
            SHARE,
        ),
        "head": HEAD,
        "seed": SEED,
    },
    reset="continual",
)
