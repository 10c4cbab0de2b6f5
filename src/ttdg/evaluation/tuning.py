"""Hyper-parameters chosen once, fairly: the same small budget for every method, on simulated hospitals.

A simulated hospital is a stream of held-out source images under one shift in light, optics, anatomy and annotation. How
far away the next real one lies is not known, so they stand near and far. Every configuration of every method meets the
same hospitals, online as at test time. No target image is ever read.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ttdg.adaptation import METHODS, Adapter, adapt, defaults
from ttdg.checkpoints import Model
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError
from ttdg.evaluation.reproducibility import seed_all
from ttdg.files import atomic_file
from ttdg.metrics import dice, region_masks, region_probabilities
from ttdg.types import Batch

BUDGET = 6  # configurations a method
FACTORS, STEPS = (0.1, 1.0, 10.0), (1, 3)  # of the default rate; steps


@dataclass(frozen=True)
class Search:
    """What all methods are tuned on: so many hospitals, near and far, a stream of so many images each."""

    hospitals: int = 8
    images: int = 32
    batch: int = 4
    farthest: float = 1.0  # strength of the last hospital's shift; the others lie evenly on the way there
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    options: Mapping[str, Any]
    dice: float  # mean over regions, images and hospitals
    seconds: float  # an image


@dataclass(frozen=True)
class Tuned:
    method: str
    chosen: Mapping[str, Any]
    dice: float
    trials: tuple[Trial, ...]
    found: tuple[int, ...]  # images each hospital really had


def grid_of(method: str) -> dict[str, tuple[Any, ...]]:
    """The method's own grid, or lr × {0.1, 1, 10} and 1 or 3 steps where it has those options."""
    declared, options = METHODS[method].grid, defaults(method)
    if declared or not METHODS[method].backwards:
        return dict(declared)
    grid: dict[str, tuple[Any, ...]] = {}
    if "lr" in options:
        grid["lr"] = tuple(float(f"{factor * options['lr']:.6g}") for factor in FACTORS)
    if "steps" in options:
        grid["steps"] = STEPS
    return grid


def configurations(method: str) -> list[dict[str, Any]]:
    """The grid's points, the defaults first if they are among them: they win where nothing is better."""
    grid, usual = grid_of(method), defaults(method)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return sorted(points, key=lambda point: any(usual[name] != value for name, value in point.items()))[
        :BUDGET
    ]


def images_found(held_out: Sequence[Arrays], search: Search) -> tuple[int, ...]:
    """Images of each hospital: those asked for, or all that its site holds out where they are fewer."""
    sizes = [len(arrays.images) for arrays in held_out]
    return tuple(min(search.images, sizes[number % len(sizes)]) for number in range(search.hospitals))


def hospital(
    number: int, held_out: Sequence[Arrays], benchmark: Benchmark, search: Search, device: torch.device
) -> Iterator[Batch]:
    """The stream of one simulated hospital: images of one source site in random order, all under the same shift."""
    arrays, seed = held_out[number % len(held_out)], search.seed * 1_000_003 + number
    strength = search.farthest * (number + 1) / search.hospitals
    assert arrays.masks is not None, "tuning needs masks of the held-out source images"
    rows = torch.randperm(len(arrays.images), generator=torch.Generator().manual_seed(seed))[: search.images]
    for part in rows.split(search.batch):
        images, masks = arrays.images[part].to(device).float() / 255, arrays.masks[part].to(device).long()
        again = torch.Generator().manual_seed(seed)  # the same shift for every batch
        images, masks = simulate(images, masks, again, strength, group=len(part))
        cases = tuple(arrays.cases[int(row)] for row in part)
        yield Batch(normalise(images, benchmark.normalisation), masks, cases)


def score(adapter: Adapter, batches: Iterator[Batch], benchmark: Benchmark) -> tuple[list[float], float]:
    """Dice of every image, mean over its regions, and the seconds spent adapting."""
    scores, spent = [], 0.0
    adapter.reset()
    for batch in batches:
        start = time.perf_counter()
        logits = adapter(batch.images)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        spent += time.perf_counter() - start
        assert batch.masks is not None
        regions = region_masks(batch.masks, benchmark.regions)
        scores += dice(region_probabilities(logits.float(), benchmark.regions), regions).mean(1).tolist()
    return scores, spent


def run_trial(
    model: Model, method: str, options: Mapping[str, Any], held_out: Sequence[Arrays], search: Search
) -> Trial:
    """One configuration over all hospitals, reset at the door of each."""
    device, benchmark = next(model.network.parameters()).device, model.card.benchmark
    seed_all(search.seed)  # a method that draws answers alike each time
    adapter = adapt(model, method, **options)
    scores: list[float] = []
    seconds = 0.0
    for number in range(search.hospitals):
        each, spent = score(adapter, hospital(number, held_out, benchmark, search, device), benchmark)
        scores, seconds = scores + each, seconds + spent
    return Trial(dict(options), sum(scores) / len(scores), seconds / len(scores))


def with_images(held_out: Sequence[Arrays]) -> list[Arrays]:
    """The sites that can be a hospital: a small one may hold out nothing, since a patient's name decides its side."""
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
) -> Tuned:
    """Every configuration of a method, and the best of them; a tie goes to the first, which is the defaults'."""
    wanted, sites = configurations(method) if points is None else points, with_images(held_out)
    trials = [run_trial(model, method, options, sites, search) for options in wanted]
    best = max(trials, key=lambda trial: -math.inf if math.isnan(trial.dice) else trial.dice)
    return Tuned(method, best.options, best.dice, tuple(trials), images_found(sites, search))


def read_search(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """The methods tuned so far; a file about anything but the same search is not written over."""
    if not path.exists():
        return {}
    try:
        found = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        methods = dict(found.pop("methods"))
    except (OSError, yaml.YAMLError, TypeError, ValueError, KeyError):
        raise UserError(f"{path} holds no search; choose another --out or remove it") from None
    if other := {name: found.get(name) for name in {**found, **about} if found.get(name) != about.get(name)}:
        said = ", ".join(f"{name} {value}" for name, value in other.items())
        raise UserError(f"{path} holds another search ({said}); choose another --out or remove it")
    return methods


def write_search(path: Path, about: Mapping[str, Any], methods: Mapping[str, Any]) -> None:
    """What was searched, and for each method what was chosen, and every trial."""
    with atomic_file(path) as temporary:
        text = yaml.safe_dump({**about, "methods": dict(methods)}, sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")


def search_record(tuned: Tuned) -> dict[str, Any]:
    """As yaml keeps it: scores in percent, to what is worth reading; `found` is hospital → images it really had."""
    trials = [
        {**asdict(t), "dice": round(100 * t.dice, 3), "seconds": round(t.seconds, 5)} for t in tuned.trials
    ]
    return {
        "chosen": dict(tuned.chosen),
        "dice": round(100 * tuned.dice, 3),
        "found": dict(enumerate(tuned.found, 1)),
        "trials": trials,
    }
