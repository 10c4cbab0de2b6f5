"""One method on one site, from image files to records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ttdg.adaptation import METHODS, build_adapter, seed_all
from ttdg.checkpoints import Model, ModelCard
from ttdg.data import Benchmark, Case, Order, Site, complete_volumes, ordered, split, stream
from ttdg.data.volumes.grouping import batched
from ttdg.errors import UserError
from ttdg.evaluation.evaluate import Evaluation, evaluate
from ttdg.evaluation.scoring import measure_for
from ttdg.evaluation.streams import Stream, TargetStream
from ttdg.networks.determinism import deterministic_algorithms
from ttdg.types import Batch, Regions


@dataclass(frozen=True)
class Setting:
    """What identifies an evaluation besides the model and the method's options."""

    site: str
    method: str
    stream: Stream
    batch: int
    seed: int = 0
    views: str = "plain"  # over which the answers are averaged
    statistics: str = "own"  # of BatchNorm, under the method
    deterministic: bool = False  # a fixed order of sums on a GPU, where PyTorch has one


def evaluate_site(
    model: Model,
    site: Site,
    benchmark: Benchmark,
    setting: Setting,
    *,
    options: Mapping[str, Any] | None = None,
    held_out: bool = False,
    shuffle: bool = False,
    order: Order = "site",
    surfaces: bool = False,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    answered: Callable[[Tensor], None] = lambda logits: None,
) -> Evaluation:
    """Adapt to a labelled site and score every image.

    Args:
        model: The source model.
        site: The site with images and masks.
        benchmark: How the masks of the data encode labels.
        setting: Method, stream, batch size and seed.
        options: Options of the method; its defaults are used for all others.
        held_out: Score only the fifth of the site that no model was trained on.
        shuffle: Shuffle the images by the seed. Video sites hold runs of near-identical frames, which make the
            statistics of a batch those of one frame.
        order: Whether the images come volume by volume; `shuffle` then shuffles the volumes.
        surfaces: Also measure HD95 and ASSD, which cost more than all other metrics.
        workers: Threads that read images.
        progress: Called with the number of images answered so far.
        answered: Called with the logits of every batch of the final pass, in the order of the images.
    """
    cases = list(split(site.cases)[1] if held_out else site.cases)
    if not cases:
        raise UserError(
            f"site {site.name!r} holds out none of its {len(site.cases)} images; score all of them instead"
        )
    if not all(case.labelled for case in cases):
        raise UserError(
            f"site {site.name!r} has images without masks; scoring needs them, so put them into its folder masks"
        )
    images = ordered([(site, case) for case in cases], order, setting.seed if shuffle else None)
    device = next(model.network.parameters()).device
    readable = benchmark_for_model(model.card, benchmark)
    sizes = [len(part) for part in batched(images, setting.batch, order)]
    target = TargetStream(
        site.name,
        [(site.name, case.name) for _, case in images],
        lambda: device_batches(device, [case for _, case in images], readable, sizes, workers, progress),
        batch_count=len(sizes),
        volumes=complete_volumes(images, readable.size, spacing=surfaces) if readable.volumes else (),
    )
    score = measure_for(readable, surfaces)

    def measure(logits: Tensor, labels: Tensor, regions: Regions) -> dict[str, Tensor]:
        answered(logits)
        return score(logits, labels, regions)

    with deterministic_algorithms() if setting.deterministic else nullcontext():
        seed_all(setting.seed)
        adapter = build_adapter(model, setting.method, options or {}, setting.views, setting.statistics)
        result = evaluate(
            adapter, [target], setting.stream, setting.batch, readable.regions,
            memory=METHODS[setting.method].memory, measure=measure,
        )  # fmt: skip
    about = {
        **asdict(setting), "cases": "held-out" if held_out else "all", "shuffled": shuffle,
        "order": order,
        "model": model.card.sha256, "options": dict(options or {}),
    }  # fmt: skip
    return Evaluation({**about, **result.about}, result.rows)


def device_batches(
    device: torch.device,
    cases: Sequence[Case],
    benchmark: Benchmark,
    size: int | Sequence[int],
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Batch]:
    """Yield the cases as batches on the device; threads read a few batches ahead."""
    done = 0
    for loaded in stream(cases, benchmark, size, workers=workers, device=device):
        yield loaded.batch
        done += len(loaded.cases)
        progress(done)


def benchmark_for_model(card: ModelCard, benchmark: Benchmark) -> Benchmark:
    """Return the data's mask encoding with the model's image size, normalisation and regions; labels must agree."""
    trained = card.benchmark
    if trained.labels != benchmark.labels:
        raise UserError(
            f"the model knows the labels {', '.join(trained.labels)}, the data {', '.join(benchmark.labels)}; "
            "choose the benchmark the model was trained for"
        )
    if trained.task != benchmark.task:
        raise UserError(
            f"the model was trained for {trained.task}, but the benchmark {benchmark.name!r} is a {benchmark.task}; "
            "choose the benchmark the model was trained for"
        )
    return replace(benchmark, size=trained.size, normalisation=trained.normalisation, regions=trained.regions)
