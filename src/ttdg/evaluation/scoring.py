"""From answers to rows of records. Labels are compared with answers here and nowhere earlier.

`evaluate`, `bench` and `tune` all score through `score_streams`, so the same model and images give the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ttdg.adaptation import Adapter
from ttdg.data import Benchmark
from ttdg.evaluation.records import Row
from ttdg.evaluation.streams import Answer, Stream, TargetStream, answers
from ttdg.evaluation.volume_scoring import VolumeScorer
from ttdg.metrics import accuracy, dice, region_masks, region_probabilities, score_regions, surface_scores
from ttdg.metrics.published_variants import instance_dice
from ttdg.types import Regions

TOGETHER = 32  # images scored in one call; a GPU idles while Python scores small batches
HALF = 128  # index of the first threshold k/255 that is at least 0.5

Measure = Callable[[Tensor, Tensor, Regions], dict[str, Tensor]]
"""(logits, labels, regions) → metric → values (images, regions), or (images,) for a value without a region.

`curve` has a third axis of 256 thresholds. If volumes are scored, there are also the masks
`prediction` and `truth` (images, regions, height, width).
"""


def measure_all(surfaces: bool = False, instances: bool = False, volumes: bool = False) -> Measure:
    """Return the measure of a benchmark: Dice, E_φ and S_α, and on request surface distances and instance Dice.

    With `volumes` it also returns the masks, from which volumes are scored.
    """

    def measure(logits: Tensor, labels: Tensor, regions: Regions) -> dict[str, Tensor]:
        probabilities, truth = region_probabilities(logits, regions), region_masks(labels, regions)
        scores = score_regions(probabilities, truth)
        values = {
            "dice": scores.dice,
            "alignment": scores.alignment[..., HALF],
            "structure": scores.structure,
        }
        prediction = probabilities >= 0.5
        if surfaces:
            distances = surface_scores(prediction, truth)
            values |= {"hd95": distances.hd95, "assd": distances.assd}
        if instances:
            values |= _instances(probabilities, truth)
        if volumes:
            values |= {"prediction": prediction, "truth": truth}
        return values | {"curve": scores.alignment}

    return measure


def measure_dice(logits: Tensor, labels: Tensor, regions: Regions) -> dict[str, Tensor]:
    """Measure Dice alone, which is all that tuning compares."""
    return {"dice": dice(region_probabilities(logits.float(), regions), region_masks(labels, regions))}


def measure_accuracy(logits: Tensor, labels: Tensor, regions: Regions) -> dict[str, Tensor]:
    """Measure whether the class of each image is right."""
    return {"accuracy": accuracy(logits, labels)}


def measure_for(benchmark: Benchmark, surfaces: bool = False, instances: bool = False) -> Measure:
    """Return the measure of a benchmark's task: accuracy, or `measure_all`."""
    if benchmark.task == "classification":
        return measure_accuracy
    return measure_all(surfaces, instances, benchmark.volumes)


def score_streams(
    adapter: Adapter,
    targets: Sequence[TargetStream],
    stream: Stream,
    regions: Regions,
    *,
    memory: bool = True,
    measure: Measure,
) -> tuple[list[Row], float]:
    """Run the adapter over the targets and score every image.

    Returns:
        The rows of all targets in the order of their streams, and the seconds that the answers took.
    """
    (scores,) = score_forms(
        adapter, targets, stream, regions, [lambda answer: answer], memory=memory, measure=measure
    )
    return scores


def score_forms(
    adapter: Adapter,
    targets: Sequence[TargetStream],
    stream: Stream,
    regions: Regions,
    forms: Sequence[Callable[[Answer], Answer]],
    *,
    memory: bool = True,
    measure: Measure,
) -> list[tuple[list[Row], float]]:
    """Run the adapter over the targets once, and score several forms of each answer; see `score_streams`."""
    tables = [_StreamScores(regions, measure) for _ in forms]
    for target, answer in answers(adapter, targets, stream, memory):
        for table, answer_form in zip(tables, [form(answer) for form in forms], strict=True):
            table.add(target, answer_form)
    return [table.finish() for table in tables]


class _StreamScores:
    """Rows and seconds of the answers to all targets, in the order of their streams."""

    def __init__(self, regions: Regions, measure: Measure) -> None:
        self.regions, self.measure = regions, measure
        self.rows: list[Row] = []
        self.seconds = 0.0
        self.scorer: Scorer | None = None

    def add(self, target: TargetStream, answer: Answer) -> None:
        """Score an answer, or queue it until there are enough of them."""
        if self.scorer is None or self.scorer.target is not target:
            self.rows += self.scorer.finish() if self.scorer else []
            self.scorer = Scorer(target, self.regions, self.measure)
        self.seconds += answer.seconds * len(answer.cases)
        self.rows += self.scorer.add(answer)

    def finish(self) -> tuple[list[Row], float]:
        """Return all rows, and the seconds that the answers took."""
        return self.rows + (self.scorer.finish() if self.scorer else []), self.seconds


class Scorer:
    """Scores the answers of one target in the order of its stream, several batches at once."""

    def __init__(self, target: TargetStream, regions: Regions, measure: Measure) -> None:
        self.target, self.regions, self.measure = target, regions, measure
        self.images = iter(target.images)
        self.waiting: list[Answer] = []
        self.curve: Tensor | None = None  # float64 sum of the E_φ curves over images
        self.scored = 0
        self.volumes = VolumeScorer(target, regions)

    def add(self, answer: Answer) -> list[Row]:
        """Queue an answer; return the rows of all queued answers once there are enough of them."""
        self.waiting.append(answer)
        return list(self._score()) if sum(len(a.cases) for a in self.waiting) >= TOGETHER else []

    def finish(self) -> list[Row]:
        """Return the remaining rows, and E_φ^max of the target: the maximum of the mean curve."""
        rows = list(self._score()) if self.waiting else []
        if self.curve is not None:
            best = (self.curve / self.scored).amax(-1).tolist()
            for region, value in zip(self.regions, best, strict=True):
                rows.append((self.target.name, "", "", region, "alignment_max", value))
        return rows

    def _score(self) -> Iterator[Row]:
        queued, self.waiting = self.waiting, []
        logits = torch.cat([answer.logits for answer in queued])
        labels = torch.cat([answer.labels for answer in queued])
        metrics, masks = self._measured(logits, labels)
        names = [case for answer in queued for case in answer.cases]
        per_image = [_per_image(answer, i) for answer in queued for i in range(len(answer.cases))]
        for number, (name, extra) in enumerate(zip(names, per_image, strict=True)):
            site, case = next(self.images)
            assert case == name, f"the stream gave {name}, the plan said {case}"
            for metric, values in metrics.items():
                one = values[number]
                for region, value in (
                    zip(self.regions, one, strict=True) if isinstance(one, list) else [("", one)]
                ):
                    yield self.target.name, site, case, region, metric, value
            for metric, number_of_image in extra.items():
                yield self.target.name, site, case, "", metric, number_of_image
            if masks:
                yield from self.volumes.add(
                    site, case, (masks[0][number], masks[1][number]), surfaces="hd95" in metrics
                )

    def _measured(
        self, logits: Tensor, labels: Tensor
    ) -> tuple[dict[str, list[list[float] | float]], tuple[Tensor, ...]]:
        """Return metric → image → region (or one value), and the masks if any; add the E_φ curves to their sum."""
        values = self.measure(logits, labels, self.regions)
        if (curves := values.pop("curve", None)) is not None:
            total = curves.double().sum(0)
            self.curve = total if self.curve is None else self.curve + total
        self.scored += len(labels)
        masks = tuple(values.pop(name) for name in ("prediction", "truth") if name in values)
        return {name: value.double().tolist() for name, value in values.items()}, masks


def _per_image(answer: Answer, index: int) -> Mapping[str, float]:
    """Values of one image that belong to no region."""
    return {"seconds": answer.seconds, **{name: values[index] for name, values in answer.expected.items()}}


def _instances(probabilities: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """`instance_dice` is a mean over the `instances` of an image; means over images are weighted by them."""
    maps, masks = probabilities.flatten(0, 1).cpu().numpy(), truth.flatten(0, 1).cpu().numpy()
    pairs = torch.tensor([instance_dice(p, t) for p, t in zip(maps, masks, strict=True)], dtype=torch.float64)
    pairs = pairs.reshape(*truth.shape[:2], 2)
    return {"instance_dice": pairs[..., 0], "instances": pairs[..., 1]}
