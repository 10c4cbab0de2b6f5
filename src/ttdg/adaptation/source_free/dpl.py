"""DPL: train briefly on the source's own labels, where they are stable and agree with the nearest class prototype.

Chen et al., Source-Free Domain Adaptive Fundus Image Segmentation with Denoised Pseudo-Labeling, MICCAI 2021.

Labels are made once, by the source network: the mean of ten predictions under dropout, at a threshold of 0.75. A pixel
is kept if the predictions spread little and its features are nearer to the prototype of its own label than to the other
one. The network is then trained on strongly augmented images with the cross-entropy of the kept pixels.

Decisions: Networks without dropout layers, as all our source models are, predict flips with mild gammas instead, which
are turned back before the mean. BatchNorm uses batch statistics in both stages, in batches of 8, as in the authors'
code. With `statistics="source"` it keeps those of the source; at the published learning rate the weights then move too
far (on synthetic images, Dice fell from 95 to 0 at a source site). Dropout is active in the label stage only. The code
predicts each test image with its own statistics and with dropout; here the running statistics predict, without dropout.
Prototypes are means over all images of the folder; in the code they are means over each batch of 8, and depend on the
order of files. A structure with fewer than 50 sure cells keeps all its labels, where the code divides by 0. The
features are those of the decoder at stride 4, which joins fine and deep maps as the code's concatenation does. Images
are shuffled. Structures of a softmax head are nested (`ttdg.adaptation.source_free.structures`). The code takes the
better of two passes by target labels; here the prediction is that after the last pass, at a threshold of 0.5 as for all
methods. In the online stream each batch is labelled when it arrives, with the prototypes of all images so far, and
`steps` steps are taken on draws from the memory.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Method
from ttdg.adaptation.options import COUNT, HEAD, LR, SEED, SHARE, Option, Range
from ttdg.adaptation.source_free.denoised_labels import (
    Cells,
    Maps,
    Opinion,
    Prototypes,
    logits_and_cells,
    opinion,
    repeated_views,
)
from ttdg.adaptation.source_free.fundus_views import SALT, Salt, fundus_strong_view
from ttdg.adaptation.source_free.structures import masked_loss, structure_logits
from ttdg.adaptation.source_free.trainer import Rows, SiteTrainer
from ttdg.adaptation.source_free.training_mode import (
    TRAINING,
    Statistics,
    active_dropout,
    dropout_layers,
    use_mode,
)
from ttdg.networks import batchnorm, split
from ttdg.networks.capture import CaptureGuard
from ttdg.networks.cuda_graph import GraphRunner
from ttdg.networks.pyramid import noise_image

STRIDE = 4  # of the features of the prototypes


class DenoisedTrainer(SiteTrainer):
    """Labels images by the frozen `source` network and the prototypes; the base of DPL and CPR."""

    def __init__(
        self, network: nn.Module, *, samples: int, threshold: float, uncertainty: float, salt: Salt,
        label_mode: batchnorm.Mode = batchnorm.EVAL, **training: Any,
    ) -> None:  # fmt: skip
        self.samples, self.threshold, self.uncertainty, self.salt = samples, threshold, uncertainty, salt
        self.head, self.device = training["head"], next(network.parameters()).device
        self.source = copy.deepcopy(split.require_split(network)).eval().requires_grad_(False)
        if self.device.type == "cuda":
            self.source.to(memory_format=torch.channels_last)
        use_mode([self.source], batchnorm.EVAL)
        self._dropouts = dropout_layers([self.source])
        self._look_runner = GraphRunner(CaptureGuard(self.source, not self._dropouts))
        logits, cells = self._look_once(noise_image(network))
        self.prototypes = Prototypes(logits.shape[1], cells.shape[1], self.device)
        use_mode([self.source], label_mode)
        super().__init__(network, masked_loss, **training)

    def _look(self, images: Images) -> tuple[Maps, Cells]:
        return self._look_runner(self._look_once, images)

    @torch.no_grad()
    def _look_once(self, images: Images) -> tuple[Maps, Cells]:
        with self._precision():
            images = images.contiguous(memory_format=torch.channels_last)
            logits, cells = logits_and_cells(self.source, images, STRIDE)
        return structure_logits(logits.float(), self.head), cells.float()

    @torch.no_grad()
    def _opinion(self, images: Images) -> Opinion:
        """Repeat the prediction under dropout, or in views if the network has no dropout."""
        if not self._dropouts:
            return opinion(repeated_views(self._look, self.memory, images, self.samples))

        def passes() -> Iterator[tuple[Maps, Cells]]:
            for _ in range(self.samples):
                yield self._look(images)

        with active_dropout(self._dropouts, self.generator, self.device):
            return opinion(passes())

    def _survey(self) -> None:
        self.prototypes.clear()
        for rows in self._chunks():
            self.prototypes.add(self._opinion(self._stored(rows)), self.threshold, self.uncertainty)

    @torch.no_grad()
    def _notes(self, images: Images, new: bool) -> dict[str, Tensor]:
        seen = self._opinion(images)
        if new:
            self.prototypes.add(seen, self.threshold, self.uncertainty)
        labels = seen.mean > self.threshold
        nearest = self.prototypes.nearest(seen, labels)
        keep = (seen.spread < self.uncertainty) & (labels == nearest)
        return self._denoised(seen, labels, nearest, keep)

    def _denoised(self, seen: Opinion, labels: Tensor, nearest: Tensor, keep: Tensor) -> dict[str, Tensor]:
        """Return the columns to store from labels, prototype labels and kept pixels."""
        return {"labels": labels, "keep": keep}

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the source, and forget all images and prototypes."""
        super().reset()
        self.prototypes.clear()

    def _strong(self, rows: Rows) -> Images:
        """Strong views of stored images."""
        strong = fundus_strong_view(self.memory.unit_images(rows), self.generator, self.salt)
        return self.memory.network_input(strong, rows)

    def _step(self, strong: Images, labels: Maps, keep: Maps) -> Tensor:
        """Update the network on strong views and return the loss; nothing changes if no pixel is kept."""
        self.optimiser.zero_grad(set_to_none=True)  # a failed recording may have left gradients
        with torch.enable_grad():
            logits = structure_logits(self._logits(self.network, strong), self.head)
            loss = self.objective(logits, labels, keep)
        self._update(loss)
        return self.loss

    def _tensors(self) -> dict[str, Tensor]:
        own = {"prototypes.sums": self.prototypes.sums, "prototypes.support": self.prototypes.support}
        return super()._tensors() | own


class Dpl(DenoisedTrainer):
    """The adapter of DPL. State: the network, Adam, prototypes, and the memory with labels and kept pixels."""

    uses_dropout = False

    def _learn(self, rows: Rows) -> None:
        labels, keep = (self.memory.note(name, rows).float() for name in ("labels", "keep"))
        self.loss = self._replay(self._step, self._strong(rows), labels, keep)


def dpl(
    network: nn.Module,
    *,
    lr: float = 2e-3,
    steps: int = 4,
    epochs: int = 2,
    draw: int = 8,
    capacity: int = 512,
    samples: int = 10,
    threshold: float = 0.75,
    uncertainty: float = 0.05,
    statistics: Statistics = "batch",
    salt: Salt = "white",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `dpl`."""
    return Dpl(
        network, lr=lr, steps=steps, epochs=epochs, draw=draw, capacity=capacity, samples=samples,
        threshold=threshold, uncertainty=uncertainty, statistics=statistics, salt=salt, head=head, seed=seed,
        label_mode=batchnorm.EVAL if statistics == "source" else batchnorm.BATCH,
    )  # fmt: skip


CODE = "the authors' code"
DENOISING = {
    "samples": Option("predictions of each image from which labels are made", CODE, COUNT),
    "threshold": Option("mean probability above which a pixel is labelled as the structure", CODE, SHARE),
    "uncertainty": Option(
        "spread of the predictions below which a pixel is sure; inf keeps all",
        CODE,
        Range(0.0, endless=True),
    ),
    "salt": SALT,
    "head": HEAD,
    "seed": SEED,
}
METHOD = Method(
    build=dpl,
    summary="trains briefly on the source's labels where they are stable and agree with class prototypes",
    adapts="all weights and BatchNorm statistics",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=19,  # 10 predictions to label; 4 steps over 8 images, in units of a batch of 4; and the answer
    backwards=8,
    predict="after",
    access="source-free",
    single_precision=True,
    paper="Chen et al., MICCAI 2021",
    origin="the authors' code: Adam 2e-3, 2 passes in batches of 8; online steps are this project's",
    options={
        **TRAINING,
        **DENOISING,
        "lr": LR.with_origin(f"{CODE} (Adam, betas 0.9 and 0.99)"),
    },
    needs=("encode/decode", "segmentation"),
    grid={"lr": (2e-4, 6e-4, 2e-3), "statistics": ("batch", "source")},
    published={"salt": "black"},
)
