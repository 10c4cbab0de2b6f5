"""A scoring made ready: its model, its adapter, its images in order. Its answers are a function of the job alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ttdg.adaptation import METHODS, Adapter, adapt
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring
from ttdg.checkpoints import Model, load, load_parts, read_card
from ttdg.data import Benchmark
from ttdg.evaluation.images import ImageOrder, ordered_images, target_batches
from ttdg.evaluation.reproducibility import seed_all
from ttdg.evaluation.streams import Answer, TargetStream, answers
from ttdg.evaluation.tuned_options import chosen


@dataclass(frozen=True)
class OpenScoring:
    job: Scoring
    model: Model
    options: Mapping[str, Any]  # those the method runs with, but for its defaults
    adapter: Adapter
    orders: Mapping[str, ImageOrder]  # target → its images

    @property
    def benchmark(self) -> Benchmark:
        """That of the training, whose key is part of the job's."""
        return self.model.card.benchmark

    @property
    def device(self) -> torch.device:
        return next(self.model.network.parameters()).device

    def answers(self) -> Iterator[tuple[str, Answer]]:
        """Every batch's answer with its target's name."""
        legs = [self._leg(name, cases) for name, cases in self.orders.items()]
        return answers(self.adapter, legs, self.job.stream, METHODS[self.job.method].memory)  # type: ignore[arg-type]

    def _leg(self, name: str, cases: ImageOrder) -> TargetStream:
        job = self.job
        return TargetStream(
            name, lambda: target_batches(cases, self.benchmark, job.sites, job.batch, self.device)
        )


def open_scoring(job: Scoring, place: RunFolder) -> OpenScoring:
    model = open_model(job.training, job.fittings, place)
    options = {**job.options, **(chosen(place.tuned(job.tuning)) if job.tuning else {})}
    orders = {target.name: ordered_images(target, place.data, job) for target in job.targets}
    seed_all(job.seed)
    return OpenScoring(job, model, options, adapt(model, job.method, **options), orders)


def open_model(training: str, fittings: Mapping[str, str], place: RunFolder) -> Model:
    """The source model, with the parts that a job's method needs."""
    folder = place.model(training)
    model = _model(folder, place.device, read_card(folder).sha256)
    fitted = {
        name: load_parts(place.part(fitting), model.card.sha256)[name] for name, fitting in fittings.items()
    }
    return replace(model, parts={**model.parts, **fitted})


@lru_cache(1)
def _model(folder: Path, device: str, sha256: str) -> Model:
    """Kept for the next job; scorings and tunings never change it, since adapters work on a copy."""
    return load(folder, device)
