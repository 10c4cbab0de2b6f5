"""A scoring job made ready: its model, its adapter, and its images in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from ttdg.adaptation import METHODS, Adapter, build_adapter, seed_all
from ttdg.adaptation.gate import gate
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring
from ttdg.checkpoints import Model, load, load_parts, read_card
from ttdg.data import Benchmark, complete_volumes
from ttdg.data.image_cache import ImageOrder, learning_images, ordered_images, target_batches
from ttdg.data.volumes.grouping import Order, batched
from ttdg.errors import UserError
from ttdg.evaluation.streams import Answer, TargetStream, answers
from ttdg.evaluation.tuned_options import chosen
from ttdg.safety.policy import GatePolicy

# By folder, device and hash of the weights. Adapters work on a copy, so no job changes the model.
_last_model: dict[tuple[Path, str, str], Model] = {}


@dataclass(frozen=True)
class OpenScoring:
    """A scoring job ready to run. Its result depends on the job alone."""

    job: Scoring
    model: Model
    options: Mapping[str, Any]  # those that differ from the method's defaults
    adapter: Adapter
    orders: Mapping[str, ImageOrder]  # target → its images in order
    targets: Sequence[TargetStream]  # these images as streams of batches
    device: torch.device  # of the model

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark of the training, whose key is part of the job's key."""
        return self.model.card.benchmark

    def answers(self) -> Iterator[tuple[TargetStream, Answer]]:
        """Every batch's answer with its target."""
        return answers(self.adapter, self.targets, self.job.stream, METHODS[self.job.method].memory)  # type: ignore[arg-type]


def open_scoring(job: Scoring, folder: RunFolder) -> OpenScoring:
    """Load the model and its parts, order the images, and build the adapter."""
    model = open_model(job.training, job.fittings, folder)
    options = {**job.options, **(chosen(folder.tuned(job.tuning)) if job.tuning else {})}
    order = cast(Order, job.order)
    orders = {
        target.name: ordered_images(
            target.sites, folder.data, held_out=job.cases == "held-out",
            shuffle=job.seed if job.shuffle else None, limit=job.limit, order=order,
        )
        for target in job.targets
    }  # fmt: skip
    benchmark, device = model.card.benchmark, next(model.network.parameters()).device
    read = partial(
        target_batches,
        benchmark=benchmark,
        fingerprints=job.sites,
        size=job.batch,
        device=device,
        order=order,
    )
    targets = [
        TargetStream(
            name,
            [(site.name, case.name) for site, case in images],
            partial(read, images),
            partial(
                read,
                learning_images(images, job.learn, benchmark, job.sites),
                order=order if job.learn == "all" else "site",
            ),
            len(list(batched(images, job.batch, order))),
            complete_volumes(images, benchmark.size, spacing=job.surfaces) if benchmark.volumes else (),
        )
        for name, images in orders.items()
    ]
    seed_all(job.seed)
    adapter = build_adapter(model, job.method, options, job.views, job.statistics)
    if job.gate:
        adapter = gate(adapter, model, benchmark.regions, GatePolicy(), METHODS[job.method].memory)
    return OpenScoring(job, model, options, adapter, orders, targets, device)


def open_model(training: str, fittings: Mapping[str, str], folder: RunFolder) -> Model:
    """Load the source model with the parts that a job's method needs."""
    path = folder.model(training)
    try:
        key = (path, folder.device, read_card(path).sha256)
        if key not in _last_model:
            _last_model.clear()
            _last_model[key] = load(path, folder.device)
    except UserError as error:
        raise UserError(
            f"{error}; or remove {path} and give the same command again, which trains it again"
        ) from None
    model = _last_model[key]
    fitted = {
        name: load_parts(folder.part(fitting), model.card.sha256)[name] for name, fitting in fittings.items()
    }
    return replace(model, parts={**model.parts, **fitted})
