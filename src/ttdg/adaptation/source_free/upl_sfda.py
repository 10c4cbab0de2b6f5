"""UPL-SFDA: four decoders see turned views; pixels about which their mean is sure become labels, and entropy falls.

Wu et al., UPL-SFDA: Uncertainty-aware Pseudo Label Guided Source-Free Domain Adaptation for Medical Image Segmentation,
IEEE TMI 2023.

The decoder is copied three times. Each decoder predicts another quarter turn of the image, which is turned back. Where
the mean of the four is above 0.95, and in the largest component of its class, a pixel is labelled. The loss is a Dice
loss of each decoder on the labelled pixels, plus the entropy of the mean. The prediction is the mean of the four.

Decisions: The default options are those of the authors' 2-D code (Adam 1e-5, betas 0.9 for the encoder and 0.5 for
decoders, 10 passes, 10 images a step). A case of the code is a stack of slices; here it is one image, so that
components and Dice are those of each image. The background keeps all its components. Without dropout layers, which our
source models lack, both forward passes of the paper are the same, and one is made. BatchNorm is in training mode, as
in the authors' 3-D code; their 2-D code leaves training mode after the first pass over the data, perhaps by mistake.
Images that are not square are flipped, not turned. A sigmoid head has a foreground and a background class for each
channel; its entropy is the binary entropy in bits. The authors choose the checkpoint by labelled target images; here
the prediction is that after the last pass. In the online stream `steps` steps are taken on draws from a memory.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.options import HEAD, LR, SEED, SHARE, WEIGHT, Option
from ttdg.adaptation.source_free.components import largest_components
from ttdg.adaptation.source_free.denoised_labels import FLIPS
from ttdg.adaptation.source_free.trainer import Rows, SiteTrainer
from ttdg.adaptation.source_free.training_mode import TRAINING, Statistics, dropout_layers
from ttdg.adaptation.views import View
from ttdg.networks import split
from ttdg.networks.pyramid import noise_image

TURNS = tuple(View(turns) for turns in range(4))
SMOOTH = 1e-4

Classes = Float[Tensor, "b k h w"]


def four_views(images: Images) -> tuple[View, ...]:
    """Quarter turns of square images, flips of others; the first view is the image itself."""
    return TURNS if images.shape[-2] == images.shape[-1] else FLIPS


def class_maps(logits: Logits, head: losses.Head) -> Classes:
    """Probabilities of all classes; a sigmoid channel has two, and those of the background come last."""
    p = losses.probabilities(logits, head)
    return p if head == "softmax" else torch.cat([p, 1 - p], 1)


def reliable_labels(mean: Classes, threshold: float, head: losses.Head) -> Bool[Tensor, "b k h w"]:
    """Pixels of each class above the threshold; of a structure only its largest component in the image."""
    sure = mean > threshold
    if head == "softmax":
        return torch.cat([sure[:, :1], largest_components(sure[:, 1:])], 1)
    structure, background = sure.chunk(2, 1)
    return torch.cat([largest_components(structure), background], 1)


def reliable_dice(q: Float[Tensor, "d b k h w"], labels: Classes) -> Float[Tensor, ""]:
    """1 − Dice on labelled pixels, averaged over decoders, images and classes; 0 for a class without labels."""
    kept = q * labels
    overlap = 2 * (kept * labels).sum((3, 4)) + SMOOTH
    return (1 - overlap / (labels.sum((2, 3)) + (kept**2).sum((3, 4)) + SMOOTH)).mean()


def entropy_in_bits(mean: Classes, head: losses.Head) -> Float[Tensor, ""]:
    """−Σ q log₂ q over the classes, divided by the number of channels of the network; mean over all pixels."""
    channels = mean.shape[1] if head == "softmax" else mean.shape[1] // 2
    total = -(mean * (mean + 1e-10).log2()).sum()
    return total / (channels * mean[:, 0].numel())


class UplSfda(SiteTrainer):
    """The adapter of UPL-SFDA. State: the network, three further decoders (`copies`), Adam, and the memory.

    The copies share the modules of the network's encoder.
    """

    def __init__(
        self, network: nn.Module, *, threshold: float, entropy: float, head: losses.Head, **training: Any
    ) -> None:  # fmt: skip
        self.threshold, self.entropy = threshold, entropy
        with split.modules_used(split.require_split(network.eval())) as encoder, torch.no_grad():
            network.encode(noise_image(network))  # type: ignore[operator]
        self.copies = [copy.deepcopy(network, {id(module): module for module in encoder}) for _ in range(3)]
        self._has_dropout = bool(dropout_layers([network]))
        own = {id(parameter) for parameter in network.parameters()}
        others = [p for twin in self.copies for p in twin.parameters() if id(p) not in own]
        encoding = {id(parameter) for module in encoder for parameter in module.parameters()}
        super().__init__(
            network, self._loss, head=head, optimiser=partial(_adam, encoding), parameters=others, **training
        )

    def _networks(self, network: nn.Module) -> dict[str, nn.Module]:
        return {"student": network, **{f"decoder {i + 2}": twin for i, twin in enumerate(self.copies)}}

    def _members(self, images: Images) -> Float[Tensor, "4 b l h w"]:
        """Logits of each decoder on its own view, turned back."""
        members = []
        for view, network in zip(four_views(images), (self.network, *self.copies), strict=True):
            viewed = view(images)
            logits = split.decode(network, split.encode(self.network, viewed), viewed)
            members.append(view.inverse(logits).float())
        return torch.stack(members)

    def _respond(self, images: Images) -> Logits:
        return losses.mixture(self._members(images), self.head)

    def _learn(self, rows: Rows) -> None:
        images = self._stored(rows)
        if images.shape[-2] == images.shape[-1]:
            turns = torch.randint(8, (len(rows),), generator=self.generator).tolist()  # 4 to 8: not turned
            images = torch.stack(
                [x.rot90(n % 4, (1, 2)) if n < 4 else x for x, n in zip(images, turns, strict=True)]
            )
        self.loss = self._replay(self._step, images)

    def _step(self, images: Images) -> Tensor:
        """Update encoder and decoders, and return the loss."""
        self.optimiser.zero_grad(set_to_none=True)  # a failed recording may have left gradients
        labels = None
        if self._has_dropout:  # else the pass with gradients predicts the same
            with torch.no_grad():
                labels = self._labels(self._classes(images))
        with torch.enable_grad():
            q = self._classes(images)
            loss = self.objective(q, self._labels(q.detach()) if labels is None else labels)
        self._update(loss)
        return self.loss

    def _classes(self, images: Images) -> Float[Tensor, "4 b k h w"]:
        with self._precision():
            members = self._members(images)
        return torch.stack([class_maps(logits, self.head) for logits in members])

    def _labels(self, q: Float[Tensor, "4 b k h w"]) -> Classes:
        return reliable_labels(q.mean(0), self.threshold, self.head).float()

    def _loss(self, q: Float[Tensor, "4 b k h w"], labels: Classes) -> Float[Tensor, ""]:
        return reliable_dice(q, labels) + self.entropy * entropy_in_bits(q.mean(0), self.head)


def _adam(encoding: set[int], parameters: Sequence[Tensor], **settings: Any) -> torch.optim.Adam:
    """Adam with the published betas: 0.9 for the encoder, 0.5 for the decoders."""
    encoder, decoders = ([p for p in parameters if (id(p) in encoding) is inside] for inside in (True, False))
    groups = [
        {"params": encoder, "betas": (0.9, 0.999)},
        {"params": decoders, "betas": (0.5, 0.999)},
    ]
    return torch.optim.Adam(groups, **{"fused": True, **settings})


def upl_sfda(
    network: nn.Module,
    *,
    lr: float = 1e-5,
    steps: int = 4,
    epochs: int = 10,
    draw: int = 10,
    capacity: int = 512,
    threshold: float = 0.95,
    entropy: float = 1.0,
    statistics: Statistics = "batch",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `upl-sfda`."""
    return UplSfda(
        network, lr=lr, steps=steps, epochs=epochs, draw=draw, capacity=capacity, threshold=threshold,
        entropy=entropy, statistics=statistics, head=head, seed=seed,
    )  # fmt: skip


CODE = "the authors' code"
METHOD = Method(
    build=upl_sfda,
    summary="four decoders on turned views; their sure mean gives labels, and its entropy falls",
    adapts="all weights and BatchNorm statistics",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=44,  # 4 steps of 4 views of 10 images, in units of a batch of 4; and 4 views to predict
    backwards=40,
    predict="after",
    access="source-free",
    single_precision=True,
    paper="Wu et al., IEEE TMI 2023",
    origin="the authors' 2-D code: Adam 1e-5, 10 passes, 10 images a step; online steps are this project's",
    options={
        **TRAINING,
        "lr": LR.with_origin(f"{CODE} (Adam, betas 0.9 for the encoder and 0.5 for decoders)"),
        "threshold": Option(
            "mean probability above which a pixel is labelled", f"{CODE} for heart images", SHARE
        ),
        "entropy": Option("weight of the entropy of the mean prediction", CODE, WEIGHT),
        "head": HEAD,
        "seed": SEED,
    },
    needs=("encode/decode", "segmentation"),
    grid={"lr": (1e-5, 3e-5, 1e-4), "statistics": ("batch", "source")},
)
