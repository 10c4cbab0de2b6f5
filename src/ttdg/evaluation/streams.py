"""How an adapter may use what it has seen: the four streams, said once.

episodic   reset before every batch: nothing is learned from one batch for the next
online     reset at the start of each target, then it keeps what it learns
continual  reset once; it runs through all targets without a reset
offline    two passes: adapt to a whole target, then predict all of it with the final state (what the official
           code does). The first answer has then seen the last image, so it is never to be mixed with online numbers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ttdg.adaptation import Adapter
from ttdg.types import Batch

Stream = Literal["online", "episodic", "continual", "offline"]


@dataclass(frozen=True)
class TargetStream:
    """One target's images: what they are called, and how to read them (again, for a second pass)."""

    name: str
    batches: Callable[[], Iterable[Batch]]


@dataclass(frozen=True)
class Answer:
    """An adapter's answer to a batch, and the labels it will be scored against."""

    cases: tuple[str, ...]
    logits: Tensor
    labels: Tensor
    seconds: float  # an image
    said: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # by the method of its own answer, by image


def answers(
    adapter: Adapter, legs: Sequence[TargetStream], stream: Stream, memory: bool = True
) -> Iterator[tuple[str, Answer]]:
    """The answer to every batch of every leg, with the leg's name. The adapter sees images only.

    `memory`: does the method carry something from batch to batch? One that does not answers a second pass as it
    answered the first.
    """
    adapter.reset()
    for number, leg in enumerate(legs):
        if number and stream in ("online", "offline"):
            adapter.reset()
        first = _adapt(adapter, leg.batches()) if stream == "offline" and memory else 0.0
        for batch in leg.batches():
            if stream == "episodic":
                adapter.reset()
            verb = frozen_predictor(adapter) if stream == "offline" and memory else adapter
            logits, seconds = timed(verb, batch.images)
            assert batch.masks is not None, "evaluation needs masks"
            seconds = first + seconds / len(batch.cases)
            yield leg.name, Answer(batch.cases, logits, batch.masks, seconds, expected_scores(adapter))


def expected_scores(adapter: Adapter) -> dict[str, list[float]]:
    """What a method that judges its answers expects of those it just gave: Dice, and half its interval."""
    verdict = getattr(adapter, "verdict", None)
    if verdict is None:
        return {}
    mine = verdict.chosen[:, None]
    expected, off = (
        x.gather(1, mine)[:, 0] for x in (verdict.prediction.dice, verdict.prediction.half_width)
    )
    return {"expected": expected.tolist(), "half_width": off.tolist()}


def frozen_predictor(adapter: Adapter) -> Callable[[Tensor], Tensor]:
    """The adapter's answer without another step: its own `predict_frozen` where it offers one, else its network's."""
    predict: Callable[[Tensor], Tensor] = getattr(adapter, "predict_frozen", adapter.network)

    def answer(images: Tensor) -> Tensor:
        with torch.no_grad():
            return predict(images)

    return answer


def timed(answer: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, float]:
    """The answer and the seconds until the device has finished it."""
    start = time.perf_counter()
    logits = answer(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return logits, time.perf_counter() - start


def _adapt(adapter: Adapter, batches: Iterable[Batch]) -> float:
    """One pass whose answers are thrown away; the seconds it took an image."""
    seconds, images = 0.0, 0
    for batch in batches:
        seconds += timed(adapter, batch.images)[1]
        images += len(batch.cases)
    return seconds / max(images, 1)
