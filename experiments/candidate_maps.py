"""Small maps of the predictions between which a learned site may choose its answers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.losses import probabilities
from ttdg.adaptation.universe.site_judge import ADAPTED, UNADAPTED
from ttdg.adaptation.views import VIEW_SETS
from ttdg.checkpoints import Model
from ttdg.metrics import region_masks, region_probabilities

STEPS = 31  # of a probability; few steps compress well

Batch = tuple[Float[Tensor, "b c h w"], Int[Tensor, "b h w"]]


class CandidateMaps:
    """Collects the regions of four predictions of every image, and the true masks, as bytes.

    The predictions are those of the source network (`source`), its mean over three sizes and mirror images (`sizes`),
    the judge's (`judge`), and that of the adapted network over the same views (`adapted`).

    Args:
        model: the source model.
        learner: the learner of method `universe`, with the site learned.
        size: side of the maps in pixels; 0 collects none.
    """

    def __init__(self, model: Model, learner: Any, size: int) -> None:
        self.model, self.learner, self.size = model, learner, size
        self.found: dict[str, list[UInt8[np.ndarray, "b r y x"]]] = defaultdict(list)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Pass the batches on, and keep their masks."""
        for images, labels in batches:
            self._keep("truth", region_masks(labels, self.model.card.benchmark.regions).float())
            yield images, labels

    @torch.no_grad()
    def candidates(self, images: Float[Tensor, "b c h w"]) -> tuple[Tensor, dict[str, Tensor]]:
        """The learner's candidates and their signals; the predictions are kept."""
        P, signals = self.learner.evidence(images)
        if self.size:
            views = [
                probabilities(view.inverse(self.model.network(view(images)), images.shape[2:]), "softmax")
                for view in VIEW_SETS["scales"]
            ]
            predictions = {"source": views[0], "sizes": torch.stack(views).mean(0)}
            predictions |= {"judge": P[UNADAPTED], "adapted": P[ADAPTED]}
            for name, p in predictions.items():
                logits = p.clamp(min=1e-7).log()
                self._keep(name, region_probabilities(logits, self.model.card.benchmark.regions))
        return P, signals

    def _keep(self, name: str, maps: Float[Tensor, "b r h w"]) -> None:
        if self.size:
            small = F.interpolate(maps, (self.size, self.size), mode="area")
            steps = small.mul(STEPS).round().mul(255 / STEPS).round()
            self.found[name].append(steps.to(torch.uint8).cpu().numpy())

    def arrays(self) -> dict[str, UInt8[np.ndarray, "n r y x"]]:
        """The maps of all images by name."""
        return {name: np.concatenate(parts) for name, parts in self.found.items()}
