"""Labels of a site before and after labels of its sure images were carried to all images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer, UInt8
from torch import Tensor

from ttdg.adaptation import adapt
from ttdg.adaptation.universe.learner import UniverseLearner
from ttdg.checkpoints import Model
from ttdg.data import Arrays, to_batch
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.report.figures.panels import Panel

BATCH = 4  # images that share BatchNorm statistics in the judge's readings
BEFORE, CARRIED = "source", "carried"


@dataclass(frozen=True)
class CarriedSite:
    """The images of a site with their labels before and after.

    Attributes:
        images: The images and, if the site has them, the true labels.
        labels: Labels of all images: `source`, the prediction of the unadapted network, and `carried`.
        dice: Their Dice, averaged over the regions; empty if the site has no masks.
        expected: The Dice that the judge expects of its answers.
        unsure: True for images of the less sure half.
    """

    images: Arrays
    labels: Mapping[str, Int[Tensor, "n h w"]]
    dice: Mapping[str, Float[Tensor, " n"]]
    expected: Float[Tensor, " n"]
    unsure: Bool[Tensor, " n"]

    def mean_dice(self) -> dict[str, float]:
        """Mean Dice over the less sure half."""
        return {name: values[self.unsure].mean().item() for name, values in self.dice.items()}

    def most_changed(self, count: int) -> list[int]:
        """Rows of the less sure images in which the most pixels changed their label."""
        changed = (self.labels[BEFORE] != self.labels[CARRIED]).flatten(1).sum(1)
        rows = self.unsure.nonzero()[:, 0]
        return rows[changed[rows].argsort(descending=True, stable=True)][:count].tolist()

    def panel(self, row: int) -> Panel:
        """The image, its true labels and both predictions."""
        image, masks = self.images.images[row].movedim(0, -1).numpy(), self.images.masks
        answers = {
            name: (_bytes(labels[row]), float(self.dice[name][row]) if self.dice else None)
            for name, labels in self.labels.items()
        }
        note = f"expected Dice {100 * float(self.expected[row]):.0f}"
        return Panel(
            self.images.cases[row], image, None if masks is None else _bytes(masks[row]), answers, note
        )


@torch.no_grad()
def carry_over_site(model: Model, images: Arrays, options: Mapping[str, Any]) -> CarriedSite:
    """Carry the judge's labels of the sure images of a site to all its images, as method `universe` does at first.

    Args:
        model: A model with the parts "prior" and "judge".
        images: The images of the site.
        options: Options of method `universe`, such as its carrier.
    """
    learner = adapt(model, "universe", **options)
    assert isinstance(learner, UniverseLearner)
    benchmark = model.card.benchmark
    batch = to_batch(images, benchmark.normalisation, next(model.network.parameters()).device)
    parts = batch.images.split(BATCH)
    stored = learner.carry_labels(parts)
    size = batch.images.shape[2:]
    rows = torch.arange(len(batch.images)).split(BATCH)
    probabilities = {
        BEFORE: torch.cat([learner.network(part).softmax(1) for part in parts]),
        CARRIED: torch.cat([stored.labels("carried", part, size) for part in rows]),
    }
    scores: dict[str, Tensor] = {}
    if batch.masks is not None:
        truth = region_masks(batch.masks, benchmark.regions)
        logits = {name: p.clamp(min=1e-7).log() for name, p in probabilities.items()}
        scores = {
            name: dice(region_probabilities(x, benchmark.regions), truth).mean(1).cpu()
            for name, x in logits.items()
        }
    labels = {name: p.argmax(1).cpu() for name, p in probabilities.items()}
    return CarriedSite(images, labels, scores, stored.expected.cpu(), stored.ranks().cpu() <= 0.5)


def _bytes(labels: Integer[Tensor, "h w"]) -> UInt8[np.ndarray, "h w"]:
    return labels.numpy().astype(np.uint8)
