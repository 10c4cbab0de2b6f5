"""Score an adapter over targets and report what the scores cost: time, passes, memory, code."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from ttdg.adaptation import Adapter, Counting
from ttdg.adaptation.answer_views import AveragedAnswers
from ttdg.checkpoints import versions
from ttdg.evaluation.cost import peak_bytes, reset_peak
from ttdg.evaluation.own_answers import OwnAnswers
from ttdg.evaluation.records import PRIMARY, Row
from ttdg.evaluation.reproducibility import code_hash
from ttdg.evaluation.scoring import Measure, score_forms, score_streams
from ttdg.evaluation.streams import Stream, TargetStream
from ttdg.networks.passes import Passes, counted_passes
from ttdg.types import Regions


@dataclass(frozen=True)
class Evaluation:
    """Rows of scores, and metadata: settings of the run, its cost, and the code that made it."""

    about: Mapping[str, Any]
    rows: Sequence[Row]


@dataclass(frozen=True)
class _Run:
    """One run of an adapter over targets."""

    adapter: Adapter
    targets: Sequence[TargetStream]
    batch: int
    device: torch.device
    start: float

    def evaluation(self, rows: Sequence[Row], seconds: float, passes: Passes) -> Evaluation:
        """Return rows with the metadata of the run; seconds and passes are those of the answers."""
        counts = [target.batch_count or -(-len(target.images) // self.batch) for target in self.targets]
        about = {
            "images": sum(len(target.images) for target in self.targets),
            "batches": sum(counts),
            "forwards": passes.forwards,
            "backwards": passes.backwards,
            "counts": dict(self.adapter.counts) if isinstance(self.adapter, Counting) else {},
            "adapting_seconds": seconds,
            "all_seconds": time.perf_counter() - self.start,
            "peak_bytes": peak_bytes(self.device),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "code": code_hash(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            **mean_primary(rows),
        }
        return Evaluation(about, rows)


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
    run = _start(adapter, targets, batch)
    with counted_passes() as passes:
        rows, seconds = score_streams(adapter, targets, stream, regions, memory=memory, measure=measure)
    return run.evaluation(rows, seconds, passes)


def evaluate_with_own(
    adapter: AveragedAnswers,
    targets: Sequence[TargetStream],
    stream: Stream,
    batch: int,
    regions: Regions,
    *,
    memory: bool = True,
    measure: Measure,
) -> tuple[Evaluation, Evaluation]:
    """Evaluate answers that are averaged over views, and in the same run the method's own answers.

    Both have the scores, seconds and passes of a run of their own. Peak memory is that of the averaged answers.
    """
    run = _start(adapter, targets, batch)
    with counted_passes() as passes:
        own = OwnAnswers(adapter, passes)
        (own_rows, own_seconds), (rows, seconds) = score_forms(
            adapter,
            targets,
            stream,
            regions,
            [own.take, lambda answer: answer],
            memory=memory,
            measure=measure,
        )
    own_passes = Passes(passes.forwards - own.views.forwards, passes.backwards - own.views.backwards)
    return run.evaluation(rows, seconds, passes), run.evaluation(own_rows, own_seconds, own_passes)


def _start(adapter: Adapter, targets: Sequence[TargetStream], batch: int) -> _Run:
    """Begin a run: the peak of memory is measured from now on."""
    device = next(adapter.network.parameters()).device
    reset_peak(device)
    return _Run(adapter, targets, batch, device, time.perf_counter())


def mean_primary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean Dice or accuracy of each target over images and regions, for tables that do not read the records."""
    metric = next((row[4] for row in rows if row[4] in PRIMARY), PRIMARY[0])
    by_target: dict[str, list[float]] = {}
    for row in rows:
        if row[4] == metric:
            by_target.setdefault(row[0], []).append(row[5])
    return {metric: {target: float(np.mean(values)) for target, values in by_target.items()}}
