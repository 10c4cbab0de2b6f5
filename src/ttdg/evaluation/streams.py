"""The five streams: how an adapter may use what it learned from other images of the target.

- `episodic`: the adapter is reset before every batch, so no batch depends on another.
- `online`: the adapter is reset at the start of each target and keeps what it learns within the target.
- `continual`: the adapter is reset once and runs through all targets.
- `offline`: two passes over each target. The first pass adapts, the second answers every image with the final state, as
  the paper's released code does. The first answer depends on the last image, so offline scores are never mixed with
  online scores.
- `folder`: the adapter learns the whole unlabelled target, or chosen images of it, and then answers all of it. Methods
  that learn a site (`SiteLearner`) decide themselves how often they see each image; for all other methods the stream
  equals `offline`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ttdg.adaptation import Adapter, SelfAssessing
from ttdg.adaptation.adapter import Images
from ttdg.adaptation.whole_site import adapt_once, frozen_predictor, learn_site
from ttdg.data import Volume
from ttdg.types import Batch

Stream = Literal["online", "episodic", "continual", "offline", "folder"]
Reset = Literal["each", "first", "never"]  # before which batches of a pass an adapter is reset


@dataclass(frozen=True)
class TargetStream:
    """The images of one target in their order, and a function that reads them as batches."""

    name: str
    images: Sequence[tuple[str, str]]  # (site, case) of every image
    batches: Callable[[], Iterable[Batch]]  # called once for each pass
    learning: Callable[[], Iterable[Batch]] | None = (
        None  # what the stream `folder` learns; None: all batches
    )
    batch_count: int | None = None  # None: all batches but the last have the size of the evaluation
    volumes: Sequence[Volume] = ()  # those that are scored as volumes; their slices are among the images


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
            offline and folder streams then take one pass.
    """
    for number, target in enumerate(targets):
        reset: Reset = "never" if stream == "continual" and number else "first"
        if stream == "episodic":
            reset = "each"
        predictions, first_pass = _predictions(adapter, adapter, target, reset), 0.0
        if stream in ("offline", "folder") and memory:
            first_pass = _first_pass(adapter, target, stream)
            predictions = _predictions(adapter, frozen_predictor(adapter), target, "never")
        for batch, logits, seconds in predictions:
            assert batch.masks is not None, "evaluation needs masks"
            seconds = first_pass + seconds / len(batch.cases)
            yield target, Answer(batch.cases, logits, batch.masks, seconds, expected_scores(adapter))


def _predictions(
    adapter: Adapter, predict: Callable[[Tensor], Tensor], target: TargetStream, reset: Reset
) -> Iterator[tuple[Batch, Tensor, float]]:
    """Yield each batch of one pass with its logits and the seconds until the device had computed them.

    The adapter is reset before each batch, before the first batch, or never.
    """
    for number, batch in enumerate(target.batches()):
        if reset == "each" or (reset == "first" and number == 0):
            adapter.reset()
        start = time.perf_counter()
        logits = predict(batch.images)
        wait_for(batch.images.device)
        yield batch, logits, time.perf_counter() - start


def _first_pass(adapter: Adapter, target: TargetStream, stream: Stream) -> float:
    """Let the adapter learn the target; return the time for each image to answer, without that of reading."""
    reading, device = 0.0, torch.device("cpu")
    learn, batches = adapt_once, target.batches
    if stream == "folder":
        learn, batches = learn_site, target.learning or target.batches

    def site() -> Iterator[Images]:
        nonlocal reading, device
        start = time.perf_counter()
        for batch in batches():
            reading += time.perf_counter() - start
            device = batch.images.device
            yield batch.images
            wait_for(device)
            start = time.perf_counter()
        reading += time.perf_counter() - start

    start = time.perf_counter()
    learn(adapter, site())
    wait_for(device)
    return (time.perf_counter() - start - reading) / max(len(target.images), 1)


def wait_for(device: torch.device) -> None:
    """Wait until the device has computed everything that was started on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def expected_scores(adapter: Adapter) -> dict[str, list[float]]:
    """Return the Dice that a self-assessing method expects of its last answers, and half the interval's width."""
    assessment = adapter.assessment() if isinstance(adapter, SelfAssessing) else None
    if assessment is None:
        return {}
    return {"expected": assessment.dice.tolist(), "half_width": assessment.half_width.tolist()}
