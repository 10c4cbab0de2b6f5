"""One method on one site, from files to records."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ttdg.adaptation import adapt
from ttdg.checkpoints import Model, ModelCard
from ttdg.data import Benchmark, Case, Site, split, stream
from ttdg.errors import UserError
from ttdg.evaluation.evaluate import Setting, evaluate
from ttdg.evaluation.old_records import Records
from ttdg.types import Batch


def evaluate_site(
    model: Model,
    site: Site,
    benchmark: Benchmark,
    setting: Setting,
    *,
    options: Mapping[str, Any] | None = None,
    held_out: bool = False,
    shuffle: int = -1,
    surfaces: bool = False,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Records:
    """`shuffle` ≥ 0 is the seed of the stream's order: video sites hold runs of near-twins, which make a batch's
    statistics those of one picture."""
    cases = list(split(site.cases)[1] if held_out else site.cases)
    if not cases:
        raise UserError(
            f"site {site.name!r} holds out none of its {len(site.cases)} images; score them all with --cases all"
        )
    if any(case.mask is None for case in cases):
        raise UserError(
            f"site {site.name!r} has images without masks; scoring needs them, so put them into its folder masks"
        )
    if shuffle >= 0:
        random.Random(shuffle).shuffle(cases)
    adapter = adapt(model, setting.method, **(options or {}))
    device = next(model.network.parameters()).device
    batches = device_batches(
        device, cases, benchmark_for_model(model.card, benchmark), setting.batch, workers, progress
    )
    return evaluate(adapter, batches, model.card.benchmark.regions, setting, surfaces)


def device_batches(
    device: torch.device,
    cases: Sequence[Case],
    benchmark: Benchmark,
    size: int,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Batch]:
    """The cases as batches on the device, read ahead by a few threads."""
    done = 0
    for loaded in stream(cases, benchmark, size, workers=workers, device=device):
        yield loaded.batch
        done += len(loaded.cases)
        progress(done)


def benchmark_for_model(card: ModelCard, benchmark: Benchmark) -> Benchmark:
    """The data's way of writing masks with the model's size, normalisation and regions; labels must agree."""
    mine = card.benchmark
    if mine.labels != benchmark.labels:
        raise UserError(
            f"the model knows the labels {', '.join(mine.labels)}, the data {', '.join(benchmark.labels)}; "
            "choose the benchmark the model was trained for"
        )
    return replace(benchmark, size=mine.size, normalisation=mine.normalisation, regions=mine.regions)
