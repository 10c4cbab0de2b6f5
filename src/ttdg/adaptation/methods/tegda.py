"""TEGDA: the agreement of predictions under dropout weights the losses, a feature bank and a teacher.

Zhou et al., TEGDA: Test-time Evaluation-Guided Dynamic Adaptation for Medical Image Segmentation, MICCAI 2025.

Decisions: Dropout acts on the deepest feature map and only the decoder runs again, so that networks without dropout
layers, as all our source models are, can be evaluated. The quality is that of the authors' 2-D code: the entropy of
hard votes, scaled by its minimum and maximum over the batch, gives the confidence of each structure in each image; the
Dice is that of the whole foreground, averaged over the batch. If all votes on a structure agree in the whole batch,
the scaled entropy is ½. `quality="probabilities"` takes Dice and entropy of each structure in each image from mean
probabilities, without scaling; it is lower, so that the teacher moves faster. A structure that is absent from all
predictions has the confidence 1. The bank keeps the images with the best quality; the authors' code keeps those above
the 95th percentile of the stream. The teacher becomes a·teacher + (1−a)·student, as in the authors' 2-D file; their 3-D
file has it the other way round. All weights are trained, as in the authors' code, which gives Adam those of the last
layer too.
"""

import copy
import math
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, GradientAdapter, Images, Logits, Method
from ttdg.adaptation.memory import Bank
from ttdg.adaptation.options import COUNT, HEAD, LR, SEED, STEPS, Option, Range
from ttdg.networks import batchnorm, split
from ttdg.networks.averaging import ema_update

NEIGHBOURS = 5  # maps of the bank that refine a feature map
CAPACITY = 40  # of the bank
Quality = Literal["released", "probabilities"]


def vote_agreement(
    logits: Float[Tensor, "b c h w"], dropped: Float[Tensor, "n b c h w"], head: losses.Head
) -> Float[Tensor, "b"]:
    """Quality in [0, 1] of each prediction, from the masks of n predictions under dropout, as in the authors' code.

    The mean over samples and images of the Dice of the whole foreground, times the mean over structures of one minus
    the scaled entropy of the votes over the union of the dropout masks.
    """
    mask, masks = losses.foreground(logits, head).flatten(2), _sample_masks(dropped, head)
    whole, wholes = mask.any(1), masks.any(2)
    both = (whole & wholes).sum(2)
    dice = ((2 * both + 1e-5) / (whole.sum(1) + wholes.sum(2) + 1e-5)).mean()
    votes, union = masks.to(logits.dtype).mean(0), masks.any(0)
    H = -(votes * (votes + 1e-6).log() + (1 - votes) * (1 - votes + 1e-6).log())
    low, high = (extreme((0, 2), keepdim=True) for extreme in (H.amin, H.amax))  # over the batch
    scaled = (H - low + 1e-6) / (high - low + 2e-6)
    return dice * ((((1 - scaled) * union).sum(2) + 1e-6) / (union.sum(2) + 1e-6)).mean(1)


def probability_agreement(
    logits: Float[Tensor, "b c h w"], dropped: Float[Tensor, "n b c h w"], head: losses.Head
) -> Float[Tensor, "b"]:
    """Quality in [0, 1] of each prediction, from n predictions under dropout, each structure for itself.

    For each structure: the mean Dice of the prediction with each dropout prediction, times one minus the normalised
    entropy of the mean dropout probability over the union of the dropout masks. The result is the mean over structures.
    """
    mask, masks = losses.foreground(logits, head).flatten(2), _sample_masks(dropped, head)
    both = (mask & masks).sum(3)
    dice = ((2 * both + 1e-6) / (mask.sum(2) + masks.sum(3) + 1e-6)).mean(0)
    p = losses.probabilities(dropped.flatten(0, 1), head).unflatten(0, dropped.shape[:2])
    p = p.mean(0)[:, -mask.shape[1] :].flatten(2)
    uncertainty = (torch.special.entr(p) + torch.special.entr(1 - p)) / math.log(2)
    union = masks.any(0)
    return (dice * (1 - (uncertainty * union).sum(2) / union.sum(2).clamp(min=1))).mean(1)


def _sample_masks(dropped: Float[Tensor, "n b c h w"], head: losses.Head) -> Bool[Tensor, "n b r hw"]:
    return losses.foreground(dropped.flatten(0, 1), head).unflatten(0, dropped.shape[:2]).flatten(3)


QUALITIES = {"released": vote_agreement, "probabilities": probability_agreement}


def symmetric_cross_entropy(a: Logits, b: Logits, head: losses.Head) -> Tensor:
    """½[CE(a, b) + CE(b, a)], divided by log₂ C as in the authors' code."""
    classes = a.shape[1] if head == "softmax" else 2
    both = losses.soft_cross_entropy(a, b, head) + losses.soft_cross_entropy(b, a, head)
    return both.mean() / (2 * max(math.log2(classes), 1.0))


class Tegda(GradientAdapter):
    """The adapter of TEGDA.

    State: the weights of the student (`network`) and of the `teacher`, Adam, a bank of deepest feature maps with their
    quality, and a random generator. One call repeats `steps` times: prediction of the teacher; forward pass; quality
    from predictions under dropout; prediction from the feature map refined by its nearest maps in the bank; Adam step
    on CE(student, teacher) + quality·CE(student, refined), both symmetric; the teacher keeps the share `quality` of its
    own weights; the maps enter the bank. Then a forward pass gives the prediction.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float,
        steps: int,
        samples: int,
        dropout: float,
        quality: Quality,
        head: losses.Head,
        seed: int,
    ) -> None:
        self.quality = quality
        self.samples, self.dropout, self.head, self.seed = samples, dropout, head, seed
        self.bank = Bank(CAPACITY)
        batchnorm.use_if_any(split.require_split(network), batchnorm.BATCH)
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self.generator = torch.Generator(next(network.parameters()).device)
        super().__init__(
            network,
            partial(symmetric_cross_entropy, head=head),
            list(network.parameters()),
            lr=lr,
            steps=steps,
            predict="after",
            optimiser=partial(torch.optim.Adam, betas=(0.5, 0.999)),
        )

    def __call__(self, images: Images) -> Logits:
        """Adapt to the batch and return its logits after the update."""
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
                dropped = self._dropout_predictions(features, images)
                quality = QUALITIES[self.quality](logits, dropped, self.head)
            refined = split.decode(self.network, (*features[:-1], self._refined(features[-1])), images)
            loss = self.objective(logits, taught) + quality.mean() * self.objective(logits, refined)
        if torch.isfinite(loss):
            self._update(loss)
            self._update_teacher(quality.mean())
            self.bank.push(features[-1].detach(), quality)

    def _dropout_predictions(self, features: split.Features, images: Images) -> Float[Tensor, "n b l h w"]:
        """Predictions of the decoder with dropout on the deepest feature map."""
        deepest, predictions = features[-1], []
        for _ in range(self.samples):
            uniform = torch.rand(deepest.shape, generator=self.generator, device=deepest.device)
            kept = deepest * (uniform >= self.dropout) / (1 - self.dropout)
            predictions.append(split.decode(self.network, (*features[:-1], kept), images))
        return torch.stack(predictions)

    def _refined(self, deepest: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """(1−r)·f + r·Σ softmax(cos) f_k over the nearest maps in the bank, with r the mean of their cosines."""
        if not self.bank.fits(deepest):
            return deepest
        cosines, maps = self.bank.nearest(deepest, NEIGHBOURS)
        target = torch.einsum("bk,bkcyx->bcyx", cosines.softmax(1), maps)
        return torch.lerp(deepest, target, cosines.mean(1)[:, None, None, None])

    @torch.no_grad()
    def _update_teacher(self, quality: Float[Tensor, ""]) -> None:
        ema_update(list(self.teacher.parameters()), self.parameters, 1 - quality)

    @torch.no_grad()
    def reset(self) -> None:
        """Return student, teacher and random generator to their start, with an empty bank."""
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
    quality: Quality = "released",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `tegda`."""
    return Tegda(
        network, lr=lr, steps=steps, samples=samples, dropout=dropout, quality=quality, head=head, seed=seed,
    )  # fmt: skip


METHOD = Method(
    build=tegda,
    summary="agreement of predictions under dropout guides a teacher and a bank of trusted features",
    adapts="all weights",
    norm="BATCH",
    memory=True,
    forwards=14,
    backwards=2,
    predict="after",
    access="source-free",
    paper="Zhou et al., MICCAI 2025",
    origin="Adam 1e-5 (0.5, 0.999), 10 samples and their quality, bank of 40, 5 neighbours as released; "
    "dropout 0.5 on the deepest map is ours",
    options={
        "lr": LR.with_origin("the authors' code (Adam, betas 0.5 and 0.999)"),
        "steps": STEPS.with_origin("the authors' code"),
        "samples": Option("number of predictions under dropout", "the authors' code", COUNT),
        "dropout": Option(
            "probability with which a value of the deepest feature map is dropped",
            "this project: the authors' networks contain dropout layers, ours do not",
            Range(0.0, 0.99),
        ),
        "quality": Option(
            "agreement of the samples: of hard votes and the whole foreground, or of each structure's probabilities",
            "the authors' 2-D code: released; probabilities is this project's",
        ),
        "head": HEAD,
        "seed": SEED,
    },
    needs=("encode/decode", "segmentation"),
)
