"""CBMT: a mean teacher with hard labels, whose loss balances the background of the rare structure.

Tang et al., Source-free Domain Adaptive Fundus Image Segmentation with Class-balanced Mean Teacher, MICCAI 2023.

The teacher, a slow average of the student, labels the clean image at a threshold of 0.75. The student fits these labels
on a strongly augmented image. Background pixels of the rare structure have the weight w = L_fg / L_bg, the ratio of the
mean losses of moderately sure foreground and background pixels over all images of the folder. w is computed at the
start of each pass. The prediction is the teacher's.

Decisions: The default options are those of the authors' code (Adam 5e-4 with betas 0.9 and 0.99, falling by 0.9 with
each of 20 passes in batches of 8), and so is BatchNorm in training mode for student and teacher: the teacher's running
statistics move by its own passes over clean images, and its weights alone are averaged. Dropout layers are active in
both networks. Structures of a softmax head are nested (`ttdg.adaptation.source_free.structures`). The code re-weights
the cup by its channel number; here the rare structure is the one with the smallest mean area (`balance`). w is limited
to 0.1 to 10, and is 1 if a band has fewer than 100 pixels, where the code divides by 0. Of the bank of predictions only
the sums that w needs are kept. Masks of the final prediction are thresholded at 0.5, as those of all methods; the
code thresholds them at 0.75. The code logs scores on target labels at every pass; here nothing is selected, and the
prediction is that after the last pass. In the online stream each batch is stored, w is computed again, and `steps`
steps are taken on draws from the memory.
"""

import copy
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Logits, Method
from ttdg.adaptation.options import HEAD, LR, SEED, SHARE, Option
from ttdg.adaptation.source_free.fundus_views import SALT, Salt, fundus_strong_view
from ttdg.adaptation.source_free.structures import masked_loss, structure_logits, structures
from ttdg.adaptation.source_free.trainer import Rows, SiteTrainer
from ttdg.adaptation.source_free.training_mode import TRAINING, Statistics
from ttdg.networks.averaging import ema_update

Balance = Literal["rarest", "all", "none"]
LEAST_PIXELS = 100  # of a band, for a weight other than 1
LIMITS = 0.1, 10.0  # of a weight


def band_sums(q: Float[Tensor, "b k h w"], threshold: float, band: float) -> Float[Tensor, "b k 5"]:
    """Sums from which the weights are computed, for each image and structure.

    The background band is τρ < q < τ, the foreground band τ < q < 1 − (1−τ)ρ. The sums are: the loss and the number of
    pixels of the background band, those of the foreground band, and the mean probability.
    """
    low, high = threshold * band, 1 - (1 - threshold) * band
    background, foreground = (q > low) & (q < threshold), (q > threshold) & (q < high)
    losses_bg, losses_fg = torch.where(background, -(1 - q).log(), 0), torch.where(foreground, -q.log(), 0)
    sums = (part.float().sum((2, 3)) for part in (losses_bg, background, losses_fg, foreground))
    return torch.stack([*sums, q.mean((2, 3))], 2)


def class_weights(sums: Float[Tensor, "n k 5"], balance: Balance) -> Float[Tensor, " k"]:
    """Weight of the background pixels of each structure, from the sums of all images."""
    total = sums.sum(0)
    loss_bg, pixels_bg, loss_fg, pixels_fg, area = total.unbind(1)
    ratio = (loss_fg / pixels_fg.clamp(min=1)) / (loss_bg / pixels_bg.clamp(min=1)).clamp(min=1e-12)
    chosen = torch.minimum(pixels_bg, pixels_fg) >= LEAST_PIXELS
    if balance == "rarest":
        chosen = chosen & (torch.arange(len(area), device=area.device) == area.argmin())
    if balance == "none":
        chosen = torch.zeros_like(chosen)
    return torch.where(chosen, ratio.clamp(*LIMITS), 1.0)


class Cbmt(SiteTrainer):
    """The adapter of CBMT. State: student (`network`), `teacher`, Adam, and the memory with the sums of each image."""

    def __init__(
        self, network: nn.Module, *, lr: float, steps: int, epochs: int, draw: int, capacity: int, momentum: float,
        decay: float, threshold: float, band: float, balance: Balance, statistics: Statistics, salt: Salt,
        head: losses.Head, seed: int,
    ) -> None:  # fmt: skip
        self.threshold, self.band, self.balance, self.salt = threshold, band, balance, salt
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)
        self._rate = torch.tensor(1 - momentum, device=next(network.parameters()).device)
        self._weights: Float[Tensor, " k"] = torch.ones(())
        super().__init__(
            network, masked_loss, lr=lr, steps=steps, epochs=epochs, draw=draw, capacity=capacity,
            statistics=statistics, head=head, seed=seed, decay=decay,
        )  # fmt: skip

    def _networks(self, network: nn.Module) -> dict[str, nn.Module]:
        return {"student": network, "teacher": self.teacher}

    def _respond(self, images: Images) -> Logits:
        return self.teacher(images)

    @torch.no_grad()
    def _notes(self, images: Images, new: bool) -> dict[str, Tensor]:
        q = structures(self._answer(self._respond, images), self.head)
        return {"sums": band_sums(q, self.threshold, self.band)}

    def _begin_pass(self) -> None:
        """Compute the weights from the last predictions of all stored images."""
        self._weights = class_weights(self.memory.columns["sums"][: len(self.memory)], self.balance)

    def _learn(self, rows: Rows) -> None:
        raw = self.memory.unit_images(rows)
        strong = fundus_strong_view(raw, self.generator, self.salt)
        views = (self.memory.network_input(images, rows) for images in (raw, strong))
        self.loss, sums = self._replay(self._step, *views, self._weights)
        self._write(rows, {"sums": sums})

    def _step(self, weak: Images, strong: Images, weights: Float[Tensor, " k"]) -> tuple[Tensor, Tensor]:
        """Update the student, let the teacher follow, and return the loss and the sums of the teacher's predictions."""
        self.optimiser.zero_grad(set_to_none=True)  # a failed recording may have left gradients
        with torch.no_grad():
            q = structures(self._logits(self.teacher, weak), self.head)
            labels = (q > self.threshold).float()
            balanced = torch.where(labels > 0.5, 1.0, weights[:, None, None])
        with torch.enable_grad():
            logits = structure_logits(self._logits(self.network, strong), self.head)
            loss = self.objective(logits, labels, balanced)
        self._update(loss)
        average = list(self.teacher.parameters())
        ema_update(average, self.parameters, self._rate * self.loss.isfinite())
        return self.loss, band_sums(q, self.threshold, self.band)


def cbmt(
    network: nn.Module,
    *,
    lr: float = 5e-4,
    steps: int = 4,
    epochs: int = 20,
    draw: int = 8,
    capacity: int = 512,
    momentum: float = 0.98,
    decay: float = 0.9,
    threshold: float = 0.75,
    band: float = 0.2,
    balance: Balance = "rarest",
    statistics: Statistics = "batch",
    salt: Salt = "white",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `cbmt`."""
    return Cbmt(
        network, lr=lr, steps=steps, epochs=epochs, draw=draw, capacity=capacity, momentum=momentum, decay=decay,
        threshold=threshold, band=band, balance=balance, statistics=statistics, salt=salt, head=head, seed=seed,
    )  # fmt: skip


CODE = "the authors' code"
METHOD = Method(
    build=cbmt,
    summary="a slow teacher labels clean images; a student learns them strongly augmented, rare structures balanced",
    adapts="all weights and BatchNorm statistics",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=18,  # the bank; 4 steps of 2 passes over 8 images, in units of a batch of 4; and the prediction
    backwards=8,
    predict="after",
    access="source-free",
    single_precision=True,
    paper="Tang et al., MICCAI 2023",
    needs=("segmentation",),
    origin="the authors' code: Adam 5e-4, 20 passes in batches of 8; online steps are this project's",
    options={
        **TRAINING,
        "lr": LR.with_origin(f"{CODE} (Adam, betas 0.9 and 0.99)"),
        "momentum": Option("share that the teacher keeps of its own weights at each step", CODE, SHARE),
        "decay": Option("factor of the learning rate after each pass over a folder", CODE, SHARE),
        "threshold": Option("probability above which a pixel is labelled as the structure", CODE, SHARE),
        "band": Option(
            "share of the probabilities on each side of the threshold that is left out as easy", CODE, SHARE
        ),
        "balance": Option(
            "structures whose background is re-weighted: the rarest, all or none",
            "the authors' code re-weights the cup, the rarer of its two structures",
        ),
        "salt": SALT,
        "head": HEAD,
        "seed": SEED,
    },
    grid={"lr": (5e-5, 1.5e-4, 5e-4), "statistics": ("batch", "source")},
    published={"salt": "black"},
)
