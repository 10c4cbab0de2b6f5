"""Score an adapter over targets and report what the scores cost: time, passes, memory, code."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from ttdg.adaptation import Adapter, Counting
from ttdg.checkpoints import versions
from ttdg.evaluation.cost import peak_bytes, reset_peak
from ttdg.evaluation.records import PRIMARY, Row
from ttdg.evaluation.reproducibility import code_hash
from ttdg.evaluation.scoring import Measure, score_streams
from ttdg.evaluation.streams import Stream, TargetStream
from ttdg.networks.passes import counted_passes
from ttdg.types import Regions


@dataclass(frozen=True)
class Evaluation:
    """Rows of scores, and metadata: settings of the run, its cost, and the code that made it."""

    about: Mapping[str, Any]
    rows: Sequence[Row]


def evaluate(
    adapter: Adapter,
    targets: Sequence[TargetStream],
    stream: Stream,
    batch: int,
    regions: Regions,
    *,
    memory: bool = True,
    measure: Measure,
) -> Evaluation:
    """Run the adapter over the targets, score every image, and measure the cost."""
    start = time.perf_counter()
    device = next(adapter.network.parameters()).device
    reset_peak(device)
    with counted_passes() as passes:
        rows, seconds = score_streams(adapter, targets, stream, regions, memory=memory, measure=measure)
    sizes = [len(target.images) for target in targets]
    counts = [target.batch_count or -(-len(target.images) // batch) for target in targets]
    about = {
        "images": sum(sizes),
        "batches": sum(counts),
        "forwards": passes.forwards,
        "backwards": passes.backwards,
        "counts": dict(adapter.counts) if isinstance(adapter, Counting) else {},
        "adapting_seconds": seconds,
        "all_seconds": time.perf_counter() - start,
        "peak_bytes": peak_bytes(device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "code": code_hash(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **mean_primary(rows),
    }
    return Evaluation(about, rows)


def mean_primary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean Dice or accuracy of each target over images and regions, for tables that do not read the records."""
    metric = next((row[4] for row in rows if row[4] in PRIMARY), PRIMARY[0])
    by_target: dict[str, list[float]] = {}
    for row in rows:
        if row[4] == metric:
            by_target.setdefault(row[0], []).append(row[5])
    return {metric: {target: float(np.mean(values)) for target, values in by_target.items()}}
