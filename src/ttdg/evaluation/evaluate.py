"""Run an adapter over a stream of labelled images and score every one of them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ttdg.adaptation import Adapter
from ttdg.evaluation.old_records import Record, Records, joined
from ttdg.evaluation.streams import Answer, Stream, TargetStream, answers
from ttdg.metrics import region_masks, region_probabilities, score, surface_scores
from ttdg.types import Batch, Regions

TOGETHER = 32  # images scored at once
COLUMNS = ("dice", "alignment", "structure", "hd95", "assd")
HALF = 128  # the first of the 256 thresholds k/255 that is at least 0.5


@dataclass(frozen=True)
class Setting:
    """What a result must say of itself."""

    site: str
    method: str
    stream: Stream
    batch: int
    seed: int = 0


def evaluate(
    adapter: Adapter, batches: Iterable[Batch], regions: Regions, setting: Setting, surfaces: bool = False
) -> Records:
    """The adapter sees images only; labels meet its answer here, after it has been given.

    `surfaces` adds HD95 and ASSD, which cost more than all the rest of the scoring.
    """
    parts: list[Records] = []
    waiting: list[Answer] = []
    for _, answer in answers(adapter, [TargetStream(setting.site, lambda: batches)], setting.stream):
        waiting.append(answer)
        if sum(len(answer.cases) for answer in waiting) >= TOGETHER:
            parts.append(record(waiting, regions, setting, surfaces))
            waiting = []
    if waiting:
        parts.append(record(waiting, regions, setting, surfaces))
    return joined(parts)


def record(given: Sequence[Answer], regions: Regions, setting: Setting, surfaces: bool) -> Records:
    """Score several batches' answers at once: on a GPU, scoring a small batch is all waiting for Python."""
    logits, labels = torch.cat([a.logits for a in given]), torch.cat([a.labels for a in given])
    scores, curves = scored(logits, labels, regions, surfaces)
    cases = [(case, answer.seconds) for answer in given for case in answer.cases]
    rows = []
    for (case, seconds), by_region in zip(cases, scores, strict=True):
        for region, values in zip(regions, by_region, strict=True):
            named: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
            rows.append(Record(case=case, region=region, seconds=seconds, **asdict(setting), **named))
    return Records(tuple(rows), curves.reshape(-1, curves.shape[-1]))


def scored(
    logits: torch.Tensor, labels: torch.Tensor, regions: Regions, surfaces: bool
) -> tuple[list[list[list[float]]], np.ndarray]:
    """Per image and region the COLUMNS; and the E curves, (images, regions, thresholds)."""
    scores = score(logits, labels, regions)
    columns = [scores.dice, scores.alignment[..., HALF], scores.structure]
    if surfaces:
        prediction = region_probabilities(logits, regions) >= 0.5
        distances = surface_scores(prediction, region_masks(labels, regions))
        columns += [distances.hd95, distances.assd]
    else:
        columns += [torch.full_like(scores.dice, torch.nan)] * 2
    values = torch.stack([column.double() for column in columns], -1)
    return values.tolist(), scores.alignment.half().cpu().numpy()
