"""The four streams: how an adapter may use what it learned from earlier images.

- `episodic`: the adapter is reset before every batch, so no batch depends on another.
- `online`: the adapter is reset at the start of each target and keeps what it learns within the target.
- `continual`: the adapter is reset once and runs through all targets.
- `offline`: two passes over each target. The first pass adapts, the second answers every image with the final state, as
  the paper's released code does. The first answer depends on the last image, so offline scores are never mixed with
  online scores.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ttdg.adaptation import Adapter, FrozenPredictor, SelfAssessing
from ttdg.types import Batch

Stream = Literal["online", "episodic", "continual", "offline"]


@dataclass(frozen=True)
class TargetStream:
    """The images of one target in their order, and a function that reads them as batches."""

    name: str
    images: Sequence[tuple[str, str]]  # (site, case) of every image
    batches: Callable[[], Iterable[Batch]]  # called once for each pass


@dataclass(frozen=True)
class Answer:
    """An adapter's logits for one batch, and the labels to score them against."""

    cases: tuple[str, ...]
    logits: Tensor
    labels: Tensor
    seconds: float  # per image
    expected: Mapping[str, Sequence[float]] = field(default_factory=dict)  # metric → value of each image


def answers(
    adapter: Adapter, targets: Sequence[TargetStream], stream: Stream, memory: bool = True
) -> Iterator[tuple[TargetStream, Answer]]:
    """Yield the answer to every batch of every target. The adapter receives images only.

    Args:
        adapter: The method around a copy of the source network.
        targets: The targets in the order in which the adapter meets them.
        stream: When the adapter is reset.
        memory: Whether the method keeps state between batches. Without state a second pass repeats the first, so the
            offline stream then takes one pass.
    """
    adapter.reset()
    for number, target in enumerate(targets):
        if number and stream in ("online", "offline"):
            adapter.reset()
        two_passes = stream == "offline" and memory
        first_pass = _adapt(adapter, target.batches()) if two_passes else 0.0
        for batch in target.batches():
            if stream == "episodic":
                adapter.reset()
            predict = frozen_predictor(adapter) if two_passes else adapter
            logits, seconds = timed(predict, batch.images)
            assert batch.masks is not None, "evaluation needs masks"
            seconds = first_pass + seconds / len(batch.cases)
            yield target, Answer(batch.cases, logits, batch.masks, seconds, expected_scores(adapter))


def expected_scores(adapter: Adapter) -> dict[str, list[float]]:
    """Return the Dice that a self-assessing method expects of its last answers, and half the interval's width."""
    assessment = adapter.assessment() if isinstance(adapter, SelfAssessing) else None
    if assessment is None:
        return {}
    return {"expected": assessment.dice.tolist(), "half_width": assessment.half_width.tolist()}


def frozen_predictor(adapter: Adapter) -> Callable[[Tensor], Tensor]:
    """Return a function that answers without an update: the adapter's own, or the adapted network."""
    predict = adapter.predict_frozen if isinstance(adapter, FrozenPredictor) else adapter.network

    def answer(images: Tensor) -> Tensor:
        with torch.no_grad():
            return predict(images)

    return answer


def timed(answer: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, float]:
    """Return the answer and the seconds until the device has finished it."""
    start = time.perf_counter()
    logits = answer(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return logits, time.perf_counter() - start


def _adapt(adapter: Adapter, batches: Iterable[Batch]) -> float:
    """Run one pass, discard its answers, and return the seconds per image."""
    seconds, images = 0.0, 0
    for batch in batches:
        seconds += timed(adapter, batch.images)[1]
        images += len(batch.cases)
    return seconds / max(images, 1)
