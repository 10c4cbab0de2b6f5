"""A scoring job made ready: its model, its adapter, and its images in order."""

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
from ttdg.evaluation.evaluate import Evaluation, evaluate
from ttdg.evaluation.images import ImageOrder, ordered_images, target_batches
from ttdg.evaluation.reproducibility import seed_all
from ttdg.evaluation.scoring import measure_all
from ttdg.evaluation.streams import Answer, TargetStream, answers
from ttdg.evaluation.tuned_options import chosen


@dataclass(frozen=True)
class OpenScoring:
    """A scoring job ready to run. Its result depends on the job alone."""

    job: Scoring
    model: Model
    options: Mapping[str, Any]  # those that differ from the method's defaults
    adapter: Adapter
    orders: Mapping[str, ImageOrder]  # target → its images in order

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark of the training, whose key is part of the job's key."""
        return self.model.card.benchmark

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.network.parameters()).device

    def targets(self) -> list[TargetStream]:
        """The targets as streams of batches."""
        return [self._target(name, images) for name, images in self.orders.items()]

    def answers(self) -> Iterator[tuple[TargetStream, Answer]]:
        """Every batch's answer with its target."""
        return answers(self.adapter, self.targets(), self.job.stream, METHODS[self.job.method].memory)  # type: ignore[arg-type]

    def evaluate(self) -> Evaluation:
        """Score every image of every target."""
        return evaluate(
            self.adapter, self.targets(), self.job.stream, self.job.batch, self.benchmark.regions,  # type: ignore[arg-type]
            memory=METHODS[self.job.method].memory, measure=measure_all(self.job.surfaces, self.job.instances),
        )  # fmt: skip

    def _target(self, name: str, images: ImageOrder) -> TargetStream:
        job = self.job
        return TargetStream(
            name,
            [(site.name, case.name) for site, case in images],
            lambda: target_batches(images, self.benchmark, job.sites, job.batch, self.device),
        )


def open_scoring(job: Scoring, folder: RunFolder) -> OpenScoring:
    """Load the model and its parts, build the adapter, and order the images."""
    model = open_model(job.training, job.fittings, folder)
    options = {**job.options, **(chosen(folder.tuned(job.tuning)) if job.tuning else {})}
    orders = {
        target.name: ordered_images(
            target, folder.data, held_out=job.cases == "held-out",
            shuffle=job.seed if job.shuffle else None, limit=job.limit,
        )
        for target in job.targets
    }  # fmt: skip
    seed_all(job.seed)
    return OpenScoring(job, model, options, adapt(model, job.method, **options), orders)


def open_model(training: str, fittings: Mapping[str, str], folder: RunFolder) -> Model:
    """Load the source model with the parts that a job's method needs."""
    path = folder.model(training)
    model = _model(path, folder.device, read_card(path).sha256)
    fitted = {
        name: load_parts(folder.part(fitting), model.card.sha256)[name] for name, fitting in fittings.items()
    }
    return replace(model, parts={**model.parts, **fitted})


@lru_cache(1)
def _model(folder: Path, device: str, sha256: str) -> Model:
    """Keep the model for the next job. Adapters work on a copy, so no job changes it."""
    return load(folder, device)
