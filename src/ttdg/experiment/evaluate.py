"""Run an adapter over a stream of labelled images and score every one of them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ttdg.adapt import Adapter
from ttdg.experiment.records import Record, Records
from ttdg.metrics import region_masks, region_probabilities, score, surface_scores
from ttdg.types import Batch, Regions

Stream = Literal["online", "episodic"]
HALF = 128  # the first of the 256 thresholds k/255 that is at least 0.5


@dataclass(frozen=True)
class Setting:
    """What a result must say of itself. Online: the adapter is reset at the start of the site and keeps what it
    learns; episodic: it is reset before every batch."""

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
    rows: list[Record] = []
    curves: list[np.ndarray] = []
    adapter.reset()
    for batch in batches:
        if setting.stream == "episodic":
            adapter.reset()
        logits, seconds = timed(adapter, batch.images)
        assert batch.masks is not None, "evaluation needs masks"
        scores, curve = _scores(logits, batch.masks, regions, surfaces)
        curves.append(curve.reshape(-1, curve.shape[-1]))
        for case, by_region in zip(batch.cases, scores, strict=True):
            for region, values in zip(regions, by_region, strict=True):
                common = (setting.site, case, region, setting.method, setting.stream, setting.batch, setting.seed)
                rows.append(Record(*common, *values, seconds / len(batch.cases)))
    return Records(tuple(rows), np.concatenate(curves) if curves else np.zeros((0, 256), np.float16))


def timed(adapter: Adapter, images: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The adapter's answer and the seconds until the device has finished it."""
    start = time.perf_counter()
    logits = adapter(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return logits, time.perf_counter() - start


def _scores(
    logits: torch.Tensor, labels: torch.Tensor, regions: Regions, surfaces: bool
) -> tuple[list[list[list[float]]], np.ndarray]:
    """Per image and region: dice, E at ½, S, HD95, ASSD; and the E curves, (images, regions, thresholds)."""
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
