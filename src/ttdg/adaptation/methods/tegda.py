"""TEGDA: how far predictions under dropout agree says how much to trust a batch, its features and the teacher.

Zhou et al., TEGDA: Test-time Evaluation-Guided Dynamic Adaptation for Medical Image Segmentation, MICCAI 2025.

Decisions: dropout acts on the deepest map and the decoder alone runs again, so that networks without dropout layers, as
all our source models are, can be evaluated; a structure absent from all predictions is a perfect agreement; the bank
keeps the best-evaluated images (the release: those above the 95th percentile of the stream); the teacher moves by
a·teacher + (1−a)·student, as in the release's 2-D file (its 3-D file has it the other way round); all weights learn
(the release leaves the last layer out).
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
from ttdg.networks import batchnorm, split
from ttdg.networks.averaging import approach

NEIGHBOURS = 5
CAPACITY = 40


def dropout_agreement(
    logits: Float[Tensor, "b c h w"], dropped: Float[Tensor, "n b c h w"], head: losses.Head
) -> Float[Tensor, "b"]:
    """Dice of the prediction with each one under dropout, times how sure these are where any sees the structure;
    the mean over structures, in [0, 1]."""
    n, b = dropped.shape[:2]
    flat = dropped.flatten(0, 1)
    mask = losses.foreground(logits, head).flatten(2)
    masks = losses.foreground(flat, head).unflatten(0, (n, b)).flatten(3)
    both = (mask & masks).sum(3)
    dice = ((2 * both + 1e-6) / (mask.sum(2) + masks.sum(3) + 1e-6)).mean(0)
    p = losses.probabilities(flat, head).unflatten(0, (n, b)).mean(0)[:, -mask.shape[1] :].flatten(2)
    doubt = (torch.special.entr(p) + torch.special.entr(1 - p)) / math.log(2)
    union = masks.any(0)
    return (dice * (1 - (doubt * union).sum(2) / union.sum(2).clamp(min=1))).mean(1)


def symmetric(a: Logits, b: Logits, head: losses.Head) -> Tensor:
    """½[CE(a, b) + CE(b, a)], in units of log₂ C as released."""
    classes = a.shape[1] if head == "softmax" else 2
    both = losses.soft_cross_entropy(a, b, head) + losses.soft_cross_entropy(b, a, head)
    return both.mean() / (2 * max(math.log2(classes), 1.0))


class Tegda(GradientAdapter):
    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        samples: int,
        dropout: float,
        head: losses.Head,
        seed: int,
    ) -> None:
        self.samples, self.dropout, self.head, self.seed = samples, dropout, head, seed
        self.bank = Bank(CAPACITY)
        if batchnorm.present(split.require_split(network)):
            batchnorm.use(network, batchnorm.BATCH)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.generator = torch.Generator(next(network.parameters()).device)
        adam = partial(torch.optim.Adam, betas=(0.5, 0.999))
        super().__init__(
            network, partial(symmetric, head=head), list(network.parameters()), lr=lr, steps=steps, predict="after",
            optimiser=adam,
        )  # fmt: skip

    def __call__(self, images: Images) -> Logits:
        for _ in range(self.steps):
            self._step(images)
        with torch.no_grad():
            return self.network(images)

    def _step(self, images: Images) -> None:
        with torch.no_grad():
            taught = self.teacher(images)
        with torch.enable_grad():
            features = split.encode(self.network, images)
            logits = split.decode(self.network, features, images)
            with torch.no_grad():
                quality = dropout_agreement(logits, self._dropped(features, images), self.head)
            refined = split.decode(self.network, (*features[:-1], self._refined(features[-1])), images)
            loss = self.objective(logits, taught) + quality.mean() * self.objective(logits, refined)
        if torch.isfinite(loss):
            self._update(loss)
            self._follow(quality.mean())
            self.bank.push(features[-1].detach(), quality)

    def _dropped(self, features: split.Features, images: Images) -> Float[Tensor, "n b l h w"]:
        deepest, answers = features[-1], []
        for _ in range(self.samples):
            drawn = torch.rand(deepest.shape, generator=self.generator, device=deepest.device)
            kept = deepest * (drawn >= self.dropout) / (1 - self.dropout)
            answers.append(split.decode(self.network, (*features[:-1], kept), images))
        return torch.stack(answers)

    def _refined(self, deepest: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Drawn towards the most similar maps in the bank, the more the more similar they are."""
        if not self.bank.fits(deepest):
            return deepest
        cosines, maps = self.bank.nearest(deepest, NEIGHBOURS)
        target = torch.einsum("bk,bkcyx->bcyx", cosines.softmax(1), maps)
        return torch.lerp(deepest, target, cosines.mean(1)[:, None, None, None])

    @torch.no_grad()
    def _follow(self, quality: Float[Tensor, ""]) -> None:
        approach(list(self.teacher.parameters()), self.parameters, 1 - quality)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        torch._foreach_copy_(list(self.teacher.parameters()), self.parameters)
        self.bank.clear()
        self.generator.manual_seed(self.seed)


def tegda(
    network: nn.Module,
    *,
    lr: float = 1e-5,
    steps: int = 1,
    samples: int = 10,
    dropout: float = 0.5,
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    return Tegda(network, lr=lr, steps=steps, samples=samples, dropout=dropout, head=head, seed=seed)


METHOD = Method(
    build=tegda,
    summary="agreement of predictions under dropout guides a teacher and a bank of trusted features",
    adapts="all weights",
    norm="BATCH",
    memory=True,
    forwards=14,
    backwards=2,
    predict="after",
    paper="Zhou et al., MICCAI 2025",
    origin="Adam 1e-5 (0.5, 0.999), 10 samples, bank of 40, 5 neighbours as released; "
    "dropout 0.5 on the deepest map is ours",
    needs=("encode/decode",),
)
