"""Choose hyper-parameters fairly: the same small budget for every method, on simulated hospitals.

A simulated hospital is a stream of held-out source images under one shift of light, optics, anatomy and annotation. The
distance of the next real hospital is unknown, so simulated hospitals range from near to far. Every configuration of
every method meets the same hospitals, in streams as at test time: of the same kind, batch size and length. No target
image is read.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ttdg.adaptation import METHODS, build_adapter, seed_all
from ttdg.arguments import checked_seed, whole_number
from ttdg.checkpoints import Model
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError
from ttdg.evaluation.records import PRIMARY
from ttdg.evaluation.scoring import measure_accuracy, measure_dice, score_streams
from ttdg.evaluation.search_space import beyond_edge, configurations
from ttdg.evaluation.streams import Stream, TargetStream
from ttdg.types import Batch

EXTENSIONS = 3  # configurations that a search may add beyond an edge of the grid
LONGEST = 400  # images of a hospital where neither a limit nor a smaller source site gives their number
MOST_IMAGES, FEWEST, MOST = 384, 3, 8  # images of all hospitals together; bounds of the number of hospitals


@dataclass(frozen=True)
class Search:
    """The simulated hospitals on which all methods are tuned.

    Fields that were added later have the implicit value of earlier searches as default.
    """

    hospitals: int = 8
    images: int = 32  # per hospital
    batch: int = 4
    farthest: float = 1.0  # strength of the last hospital's shift; the others' strengths rise evenly to it
    seed: int = 0
    stream: Stream = "online"
    repeat: bool = False  # show held-out images again, in another order, until a hospital has `images` images
    extensions: int = 0  # configurations that may be added while the best one lies at an edge of the grid

    def __post_init__(self) -> None:
        for name in ("hospitals", "images", "batch"):
            whole_number(f"{name} of a search", getattr(self, name))
        checked_seed(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, without later ones at the value of earlier searches, so that those keep their keys."""
        later = {"stream": "online", "repeat": False, "extensions": 0}
        return {name: value for name, value in asdict(self).items() if later.get(name, ...) != value}


def stream_length(limit: int | None, sizes: Sequence[int]) -> int:
    """Return the number of images of a simulated hospital: that of the test streams.

    Args:
        limit: Number of images of a test stream, if one is set.
        sizes: Number of images of each source site. Without a limit, a new hospital is taken to be as large as the
            largest of them, or to have `LONGEST` images if that is less.
    """
    return limit if limit is not None else max(1, min(LONGEST, max(sizes, default=1)))


def hospital_count(images: int) -> int:
    """Return the number of hospitals with `images` images each: fewer the longer their streams, within bounds."""
    return max(FEWEST, min(MOST, MOST_IMAGES // images))


@dataclass(frozen=True)
class Trial:
    """One configuration and its score."""

    options: Mapping[str, Any]
    dice: float  # mean over regions, images and hospitals
    seconds: float  # per image
    scores: tuple[float, ...] = ()  # mean Dice of each distinct image of each hospital
    added: bool = False  # beyond an edge of the grid


@dataclass(frozen=True)
class Tuned:
    """The chosen configuration of a method and all trials."""

    method: str
    chosen: Mapping[str, Any]
    dice: float
    trials: tuple[Trial, ...]
    found: tuple[int, ...]  # number of images in each hospital's stream
    distinct: tuple[int, ...]  # number of different images among them
    edge: str | None = None  # an option for which the choice still lies at an edge after all extensions


def images_found(held_out: Sequence[Arrays], search: Search) -> tuple[int, ...]:
    """Return the length of each hospital's stream: the images asked for, or all held-out images of its site."""
    return (search.images,) * search.hospitals if search.repeat else distinct_images(held_out, search)


def distinct_images(held_out: Sequence[Arrays], search: Search) -> tuple[int, ...]:
    """Return the number of different images of each hospital: at most the held-out images of its site."""
    sizes = [len(arrays.images) for arrays in held_out]
    return tuple(min(search.images, sizes[number % len(sizes)]) for number in range(search.hospitals))


def hospital_stream(
    number: int, held_out: Sequence[Arrays], benchmark: Benchmark, search: Search, device: torch.device
) -> TargetStream:
    """Return a simulated hospital: images of one source site in random order, all under the same shift."""
    arrays, seed = held_out[number % len(held_out)], search.seed * 1_000_003 + number
    generator, size = torch.Generator().manual_seed(seed), len(arrays.images)
    passes = math.ceil(search.images / size) if search.repeat else 1
    rows = torch.cat([torch.randperm(size, generator=generator) for _ in range(passes)])[: search.images]
    strength = search.farthest * (number + 1) / search.hospitals
    name = f"hospital {number + 1}"

    def batches() -> Iterator[Batch]:
        assert arrays.masks is not None, "tuning needs masks of the held-out source images"
        for part in rows.split(search.batch):
            images, masks = arrays.images[part].to(device).float() / 255, arrays.masks[part].to(device).long()
            generator = torch.Generator().manual_seed(seed)  # the same shift for every batch
            structures = benchmark.task == "segmentation"
            images, masks = simulate(images, masks, generator, strength, group=len(part), anatomy=structures)
            cases = tuple(arrays.cases[int(row)] for row in part)
            yield Batch(normalise(images, benchmark.normalisation), masks, cases)

    return TargetStream(name, [(name, arrays.cases[int(row)]) for row in rows], batches)


def run_trial(
    model: Model,
    method: str,
    options: Mapping[str, Any],
    held_out: Sequence[Arrays],
    search: Search,
    base: str = "own",
) -> Trial:
    """Score one configuration over all hospitals, in the stream of the search.

    `base` names the BatchNorm statistics under the method (`ttdg.adaptation.statistics_base`).
    """
    device, benchmark = next(model.network.parameters()).device, model.card.benchmark
    seed_all(search.seed)  # random methods then draw the same numbers in every trial
    targets = [hospital_stream(n, held_out, benchmark, search, device) for n in range(search.hospitals)]
    adapter = build_adapter(model, method, options, statistics=base)
    rows, seconds = score_streams(
        adapter, targets, search.stream, benchmark.regions, memory=METHODS[method].memory,
        measure=measure_accuracy if benchmark.task == "classification" else measure_dice,
    )  # fmt: skip
    images = sum(len(target.images) for target in targets)
    dice = [(target, case, value) for target, _, case, _, metric, value in rows if metric in PRIMARY]
    by_image: dict[tuple[str, str], list[float]] = {}
    for target, case, value in dice:
        by_image.setdefault((target, case), []).append(value)
    scores = tuple(statistics.fmean(values) for values in by_image.values())
    return Trial(dict(options), sum(value for *_, value in dice) / len(dice), seconds / images, scores)


def with_images(held_out: Sequence[Arrays]) -> list[Arrays]:
    """Return the sites with held-out images. Patients are split by name, so a small site may hold out none."""
    if found := [arrays for arrays in held_out if arrays.cases]:
        return found
    raise UserError(
        "no source site has held-out images to choose settings on; add images to a source site and train again, "
        "or run the method with its defaults"
    )


def tune(
    model: Model,
    method: str,
    held_out: Sequence[Arrays],
    search: Search,
    points: Sequence[Mapping[str, Any]] | None = None,
    base: str = "own",
) -> Tuned:
    """Try every configuration of a method and choose the best. A tie goes to the first, the defaults.

    While the best lies at an edge of the grid, the next value beyond that edge is tried too, as often as the search
    allows.
    """
    sites, stream = with_images(held_out), search.stream
    wanted = configurations(method, stream) if points is None else points
    trials = [run_trial(model, method, options, sites, search, base) for options in wanted]
    further = beyond_edge(method, _best(trials).options, wanted, stream)
    for _ in range(search.extensions):
        if further is None or math.isnan(_best(trials).dice):
            break
        trial = run_trial(model, method, further[1], sites, search, base)
        trials.append(replace(trial, added=True))
        further = beyond_edge(method, _best(trials).options, [trial.options for trial in trials], stream)
    best, edge = _best(trials), further[0] if further and search.extensions else None
    lengths, distinct = images_found(sites, search), distinct_images(sites, search)
    return Tuned(method, best.options, best.dice, tuple(trials), lengths, distinct, edge)


def _best(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: -math.inf if math.isnan(trial.dice) else trial.dice)


def spread_of(trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the Dice of the best trial minus that of the worst, and the standard error of this difference.

    The error is that of the mean difference over distinct images, paired by image: two configurations that differ by
    less are not distinguishable. It is NaN if the trials have no scores of images.
    """
    finite = [trial for trial in trials if not math.isnan(trial.dice)]
    if len(finite) < 2:
        return 0.0, 0.0
    best, worst = _best(finite), min(finite, key=lambda trial: trial.dice)
    differences = [a - b for a, b in zip(best.scores, worst.scores, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    return best.dice - worst.dice, error


def search_record(tuned: Tuned) -> dict[str, Any]:
    """Return a tuning as yaml stores it, with rounded scores in percent.

    `found` maps a hospital to the length of its stream, and `distinct` to the number of different images in it.
    """
    spread, error = spread_of(tuned.trials)
    return {
        "chosen": dict(tuned.chosen),
        "dice": _percent(tuned.dice),
        "spread": _percent(spread),
        **({} if math.isnan(error) else {"error": _percent(error)}),
        **({"edge": tuned.edge} if tuned.edge else {}),
        "found": dict(enumerate(tuned.found, 1)),
        "distinct": dict(enumerate(tuned.distinct, 1)),
        "trials": [
            {"options": dict(trial.options), "dice": _percent(trial.dice), "seconds": round(trial.seconds, 5)}
            | ({"added": True} if trial.added else {})
            for trial in tuned.trials
        ],
    }


def _percent(share: float) -> float:
    return round(100 * share, 3)
