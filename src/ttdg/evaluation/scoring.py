"""From answers to rows. Labels meet answers here and nowhere earlier."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ttdg.evaluation.evaluate import HALF, TOGETHER
from ttdg.evaluation.records import Row
from ttdg.evaluation.streams import Answer
from ttdg.metrics import region_masks, region_probabilities, score, surface_scores
from ttdg.metrics.published_variants import instance_dice
from ttdg.types import Regions


class Scorer:
    """Scores one target's answers in its stream's order, several batches at once.

    `places` names (site, case) of every image, in that order; cases of a mixture may share a name.
    """

    def __init__(
        self,
        target: str,
        places: Sequence[tuple[str, str]],
        regions: Regions,
        surfaces: bool = False,
        instances: bool = False,
    ) -> None:
        self.target, self.places, self.regions = target, iter(places), regions
        self.surfaces, self.instances = surfaces, instances
        self.waiting: list[Answer] = []
        self.curve: Tensor | None = None  # Σ of the E_φ curves: the maximum is the target's, not an image's
        self.images = 0

    def add(self, answer: Answer) -> list[Row]:
        """Rows of what has been scored by now; some answers wait for more."""
        self.waiting.append(answer)
        return list(self._score()) if sum(len(a.cases) for a in self.waiting) >= TOGETHER else []

    def finish(self) -> list[Row]:
        """The last rows, and those that belong to the target as a whole: E_φ^max."""
        rows = list(self._score()) if self.waiting else []
        if self.curve is not None:
            best = (self.curve / self.images).amax(-1).tolist()
            for region, value in zip(self.regions, best, strict=True):
                rows.append((self.target, "", "", region, "alignment_max", value))
        return rows

    def _score(self) -> Iterator[Row]:
        logits = torch.cat([answer.logits for answer in self.waiting])
        labels = torch.cat([answer.labels for answer in self.waiting])
        seconds = [answer.seconds for answer in self.waiting for _ in answer.cases]
        names = [case for answer in self.waiting for case in answer.cases]
        said = [{k: v[i] for k, v in a.said.items()} for a in self.waiting for i in range(len(a.cases))]
        self.waiting = []
        metrics = self._metrics(logits, labels)
        for number, (name, each) in enumerate(zip(names, seconds, strict=True)):
            site, case = next(self.places)
            assert case == name, f"the stream gave {name}, the plan said {case}"
            for metric, values in metrics.items():
                for region, value in zip(self.regions, values[number], strict=True):
                    yield self.target, site, case, region, metric, value
            for beside, value in {"seconds": each, **said[number]}.items():
                yield self.target, site, case, "", beside, value

    def _metrics(self, logits: Tensor, labels: Tensor) -> dict[str, list[list[float]]]:
        """metric → image → region."""
        scores = score(logits, labels, self.regions)
        curve = scores.alignment.double().sum(0)
        self.curve = curve if self.curve is None else self.curve + curve
        self.images += len(labels)
        values = {
            "dice": scores.dice,
            "alignment": scores.alignment[..., HALF],
            "structure": scores.structure,
        }
        if self.surfaces or self.instances:
            probabilities, truth = (
                region_probabilities(logits, self.regions),
                region_masks(labels, self.regions),
            )
            if self.surfaces:
                distances = surface_scores(probabilities >= 0.5, truth)
                values |= {"hd95": distances.hd95, "assd": distances.assd}
            if self.instances:
                values |= _instances(probabilities, truth)
        return {name: value.double().tolist() for name, value in values.items()}


def _instances(probabilities: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """`instance_dice` is a mean over an image's `instances`; over images it is weighted by them."""
    maps, masks = probabilities.flatten(0, 1).cpu().numpy(), truth.flatten(0, 1).cpu().numpy()
    pairs = torch.tensor([instance_dice(p, t) for p, t in zip(maps, masks, strict=True)], dtype=torch.float64)
    pairs = pairs.reshape(*truth.shape[:2], 2)
    return {"instance_dice": pairs[..., 0], "instances": pairs[..., 1]}
