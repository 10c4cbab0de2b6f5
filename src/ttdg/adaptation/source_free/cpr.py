"""CPR: pseudo-labels spread along a learned affinity of neighbouring cells, and a focal loss on the sure ones.

Huai et al., Context-Aware Pseudo-Label Refinement for Source-Free Domain Adaptive Fundus Image Segmentation, MICCAI
2023.

Stage A makes labels as DPL does. Stage B learns, from the kept labels, an affinity between cells at most three cells
apart, on features of the frozen network. Stage C spreads the mean probabilities by a random walk along the affinity and
divides them by their maximum. Stage D trains all weights on pixels below 0.4 or above 0.85 that agree with the
prototypes, by a focal cross-entropy on strongly augmented images.

Decisions: Labels are made as in `dpl`, with the source's BatchNorm statistics. The authors' code draws 100 dropout
masks (`samples`); our networks, which have no dropout, take 10 views. In stages B and D BatchNorm is in training mode,
as in the code, so that the statistics move to the target already in stage B. The cells are those of the decoder's map
at stride 8, resized to 32 on the longer side: as many as the code's stride 16 gives at 512 × 512. The code refines at
the native size of 800 × 800, with 50 cells; here images have the size of the network's input. Squaring the transition
matrix 2 or 5 times, as the code does for its two targets, takes 4 or 32 steps of the walk; it trains for 10 or 20
passes. Nothing without labels decides between them, and the defaults are the smaller ones for every site. A structure
with fewer than 50 sure cells has no prototype, and its pixels need not agree with one. Structures of a softmax head are
nested (`ttdg.adaptation.source_free.structures`), so that a refined outer structure contains the inner ones. The
prediction is that after the last pass, at a threshold of 0.5 as for all methods; the code uses 0.75. In the online
stream each batch is labelled when it arrives, and stages B, C and D take `steps` steps on the same draws.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ttdg.adaptation import losses
from ttdg.adaptation.adapter import Adapter, Images, Method
from ttdg.adaptation.options import COUNT, LR, POSITIVE, SHARE, WEIGHT, Option, Range
from ttdg.adaptation.site_learning import saved_state
from ttdg.adaptation.source_free import affinity
from ttdg.adaptation.source_free.denoised_labels import Cells, Opinion, logits_and_cells
from ttdg.adaptation.source_free.dpl import DENOISING, DenoisedTrainer
from ttdg.adaptation.source_free.fundus_views import Salt
from ttdg.adaptation.source_free.structures import masked_loss, structure_logits
from ttdg.adaptation.source_free.trainer import Rows
from ttdg.adaptation.source_free.training_mode import TRAINING, Statistics
from ttdg.networks import batchnorm, split
from ttdg.networks.capture import reset_optimiser
from ttdg.networks.pyramid import noise_image

STRIDE = 8  # of the features of the affinity
CELLS = 32  # on the longer side, to which the features are resized


def calibrated(refined: Float[Tensor, "n k h w"]) -> Float[Tensor, "n k h w"]:
    """Divide each map by its maximum."""
    return refined / refined.amax((2, 3), keepdim=True).clamp(min=1e-6)


class Cpr(DenoisedTrainer):
    """The adapter of CPR. State: that of DPL's base, the affinity head and its Adam; refined labels in the memory."""

    def __init__(
        self, network: nn.Module, *, affinity_lr: float, affinity_epochs: int, sharpness: float, walk: int,
        low: float, high: float, calibrate: bool, focal: float, **training: Any,
    ) -> None:  # fmt: skip
        self.affinity_epochs, self.sharpness, self.walk = affinity_epochs, sharpness, walk
        self.low, self.high, self.calibrate = low, high, calibrate
        with torch.no_grad():
            whole = split.require_split(network.eval())
            logits, cells = logits_and_cells(whole, noise_image(network), STRIDE)
        count = structure_logits(logits, training["head"]).shape[1]
        generator = torch.Generator().manual_seed(training["seed"])
        self.affinity = affinity.AffinityHead(cells.shape[1], count, generator).to(logits.device)
        self._start_of_affinity = {n: v.clone() for n, v in self.affinity.state_dict().items()}
        self._affinity_adam = torch.optim.Adam(
            self.affinity.parameters(), lr=affinity_lr, betas=(0.9, 0.99), fused=True
        )
        super().__init__(network, **training)
        self.objective = partial(masked_loss, focal=focal)

    def _denoised(self, seen: Opinion, labels: Tensor, nearest: Tensor, keep: Tensor) -> dict[str, Tensor]:
        mean = _as_bytes(seen.mean)
        known = self.prototypes.known.expand(len(mean), -1)
        return {"mean": mean, "refined": mean, "nearest": nearest, "known": known, "keep": keep}

    def _passes(self) -> int:
        return self.epochs + self.affinity_epochs

    def _learn_folder(self, report: Callable[[], None]) -> None:
        self._train(self._learn_affinity, self.affinity_epochs, report)
        for rows in self._chunks():
            self._refine(rows)
        super()._learn_folder(report)

    def _learn_draws(self, draws: Sequence[Rows]) -> None:
        with self._training():
            for rows in draws:
                self._learn_affinity(rows)
        for rows in draws:
            self._refine(rows)
        super()._learn_draws(draws)

    @torch.no_grad()
    def _cells(self, images: Images) -> Cells:
        with self._precision():
            cells = logits_and_cells(self.network, images, STRIDE)[1].float()
        sides = images.shape[-2:]
        size = [max(1, round(CELLS * side / max(sides))) for side in sides]
        return F.interpolate(cells, size=size, mode="bilinear")

    def _learn_affinity(self, rows: Rows) -> None:
        """Stage B: one step of the affinity head on strong views; the network is frozen."""
        cells = self._cells(self._strong(rows))
        size = cells.shape[-2:]
        labels = F.interpolate((self._probabilities("mean", rows) > self.threshold).float(), size=size)
        known = F.interpolate(self.memory.note("keep", rows).float(), size=size)
        batchnorm.use(self.affinity, batchnorm.TRAIN)
        with torch.enable_grad():
            loss = affinity.affinity_loss(affinity.pair_distances(self.affinity(cells)), labels, known)
        batchnorm.use(self.affinity, batchnorm.EVAL)
        finite = loss.detach().isfinite()
        if self.device.type == "cuda":  # the optimiser skips the step on the device
            self._affinity_adam.found_inf = (~finite).float()  # type: ignore[attr-defined]
        elif not finite:
            return
        self._affinity_adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._affinity_adam.step()

    @torch.no_grad()
    def _refine(self, rows: Rows) -> None:
        """Stage C: spread the stored mean probabilities along the affinity."""
        cells = self._cells(self._stored(rows))
        pairs = affinity.pair_distances(self.affinity(cells))
        height, width = cells.shape[-2:]
        weights = affinity.walk_weights(pairs, height, width, self.sharpness)
        p = self._probabilities("mean", rows)
        start = F.interpolate(p, size=cells.shape[-2:], mode="bilinear")
        refined = affinity.random_walk(start, weights, self.walk)
        refined = F.interpolate(refined, size=p.shape[-2:], mode="bilinear")
        refined = calibrated(refined) if self.calibrate else refined
        if self.head == "softmax":
            refined = refined.flip(1).cummax(1).values.flip(1)
        self._write(rows, {"refined": _as_bytes(refined.nan_to_num(0.0))})

    def _learn(self, rows: Rows) -> None:
        """Stage D: one step on sure refined labels that agree with the prototypes."""
        refined = self._probabilities("refined", rows)
        labels = refined > self.threshold
        known = self.memory.note("known", rows)[:, :, None, None]
        agreed = (labels == self.memory.note("nearest", rows)) | ~known
        keep = ((refined < self.low) | (refined > self.high)) & agreed
        self.loss = self._replay(self._step, self._strong(rows), labels.float(), keep.float())

    def _probabilities(self, name: str, rows: Rows) -> Float[Tensor, "n k h w"]:
        return self.memory.note(name, rows).float() / 255

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the source, and forget all images, prototypes and affinities."""
        super().reset()
        self.affinity.load_state_dict(self._start_of_affinity)
        reset_optimiser(self._affinity_adam)

    def _tensors(self) -> dict[str, Tensor]:
        own = {f"affinity.{name}": value for name, value in self.affinity.state_dict().items()}
        named = dict(self.affinity.named_parameters())
        adam = saved_state.adam_tensors(self._affinity_adam, list(named), list(named.values()))
        return super()._tensors() | own | {f"affinity.{name}": value for name, value in adam.items()}


def _as_bytes(probabilities: Float[Tensor, "n k h w"]) -> Tensor:
    return probabilities.mul(255).round().clamp(0, 255).to(torch.uint8)


def cpr(
    network: nn.Module,
    *,
    lr: float = 3e-4,
    steps: int = 4,
    epochs: int = 10,
    draw: int = 8,
    capacity: int = 512,
    samples: int = 10,
    threshold: float = 0.75,
    uncertainty: float = 0.05,
    affinity_lr: float = 3e-2,
    affinity_epochs: int = 16,
    sharpness: float = 2.0,
    walk: int = 4,
    low: float = 0.4,
    high: float = 0.85,
    calibrate: bool = True,
    focal: float = 2.0,
    statistics: Statistics = "batch",
    salt: Salt = "white",
    head: losses.Head = "softmax",
    seed: int = 0,
) -> Adapter:
    """Build the adapter of method `cpr`."""
    return Cpr(
        network, lr=lr, steps=steps, epochs=epochs, draw=draw, capacity=capacity, samples=samples,
        threshold=threshold, uncertainty=uncertainty, affinity_lr=affinity_lr, affinity_epochs=affinity_epochs,
        sharpness=sharpness, walk=walk, low=low, high=high, calibrate=calibrate, focal=focal,
        statistics=statistics, salt=salt, head=head, seed=seed,
    )  # fmt: skip


CODE = "the authors' code"
METHOD = Method(
    build=cpr,
    summary="labels spread along a learned affinity of cells; a focal loss on the sure ones trains all weights",
    adapts="all weights and BatchNorm statistics",
    norm="TRAIN, then EVAL",
    memory=True,
    forwards=35,  # 10 predictions to label; 4 steps of 3 passes over 8 images, in units of 4; and the answer
    backwards=8,
    predict="after",
    access="source-free",
    single_precision=True,
    paper="Huai et al., MICCAI 2023",
    origin="the authors' code: Adam 3e-4, 10 passes in batches of 8, as for RIM-ONE; samples and online steps are ours",
    options={
        **TRAINING,
        **DENOISING,
        "lr": LR.with_origin(f"{CODE} (Adam, betas 0.9 and 0.99)"),
        "epochs": TRAINING["epochs"].with_origin(f"{CODE} for RIM-ONE; 20 for Drishti"),
        "samples": DENOISING["samples"].with_origin(
            "this project: views that hardly differ beyond ten; the authors' code has 100 dropout masks"
        ),
        "affinity_lr": Option("learning rate of the affinity head", CODE, WEIGHT),
        "affinity_epochs": Option("passes over a folder that train the affinity head", CODE, COUNT),
        "sharpness": Option("power of the affinities in the random walk", CODE, POSITIVE),
        "walk": Option(
            "steps of the random walk; 0 leaves the probabilities",
            f"{CODE} for RIM-ONE; 32 for Drishti",
            Range(0.0),
        ),
        "low": Option("refined probability below which a pixel is sure background", CODE, SHARE),
        "high": Option("refined probability above which a pixel is sure", CODE, SHARE),
        "calibrate": Option("divide the refined map of each structure and image by its maximum", CODE),
        "focal": Option("exponent of the focal factor of the loss; 0 is cross-entropy", CODE, WEIGHT),
    },
    needs=("encode/decode", "segmentation"),
    grid={"lr": (3e-5, 1e-4, 3e-4), "statistics": ("batch", "source")},
    published={"samples": 100, "salt": "black"},
)
