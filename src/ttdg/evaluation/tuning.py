"""Choose hyper-parameters fairly: the same small budget for every method, on simulated hospitals.

A simulated hospital is a stream of held-out source images under one shift of light, optics, anatomy and annotation. The
distance of the next real hospital is unknown, so simulated hospitals range from near to far. Every configuration of
every method meets the same hospitals, online as at test time. No target image is read.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ttdg.adaptation import METHODS, adapt, defaults, seed_all
from ttdg.checkpoints import Model
from ttdg.data import Arrays, Benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.errors import UserError
from ttdg.evaluation.scoring import measure_dice, score_streams
from ttdg.evaluation.streams import TargetStream
from ttdg.files import atomic_file
from ttdg.types import Batch

BUDGET = 6  # configurations per method
FACTORS, STEPS = (0.1, 1.0, 10.0), (1, 3)  # factors of the default learning rate; gradient steps


@dataclass(frozen=True)
class Search:
    """The simulated hospitals on which all methods are tuned."""

    hospitals: int = 8
    images: int = 32  # per hospital
    batch: int = 4
    farthest: float = (
        1.0  # strength of the last hospital's shift; the strengths of the others rise evenly to it
    )
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One configuration and its score."""

    options: Mapping[str, Any]
    dice: float  # mean over regions, images and hospitals
    seconds: float  # per image


@dataclass(frozen=True)
class Tuned:
    """The chosen configuration of a method and all trials."""

    method: str
    chosen: Mapping[str, Any]
    dice: float
    trials: tuple[Trial, ...]
    found: tuple[int, ...]  # number of images that each hospital has


def grid_of(method: str) -> dict[str, tuple[Any, ...]]:
    """Return the method's own grid, or lr × {0.1, 1, 10} and 1 or 3 steps where it has those options."""
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
    """Return the points of the grid, the defaults first, so that a tie keeps the defaults."""
    grid, usual = grid_of(method), defaults(method)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return sorted(points, key=lambda point: any(usual[name] != value for name, value in point.items()))[
        :BUDGET
    ]


def images_found(held_out: Sequence[Arrays], search: Search) -> tuple[int, ...]:
    """Return the number of images of each hospital: those asked for, or all held-out images of its site."""
    sizes = [len(arrays.images) for arrays in held_out]
    return tuple(min(search.images, sizes[number % len(sizes)]) for number in range(search.hospitals))


def hospital_stream(
    number: int, held_out: Sequence[Arrays], benchmark: Benchmark, search: Search, device: torch.device
) -> TargetStream:
    """Return a simulated hospital: images of one source site in random order, all under the same shift."""
    arrays, seed = held_out[number % len(held_out)], search.seed * 1_000_003 + number
    rows = torch.randperm(len(arrays.images), generator=torch.Generator().manual_seed(seed))[: search.images]
    strength = search.farthest * (number + 1) / search.hospitals
    name = f"hospital {number + 1}"

    def batches() -> Iterator[Batch]:
        assert arrays.masks is not None, "tuning needs masks of the held-out source images"
        for part in rows.split(search.batch):
            images, masks = arrays.images[part].to(device).float() / 255, arrays.masks[part].to(device).long()
            generator = torch.Generator().manual_seed(seed)  # the same shift for every batch
            images, masks = simulate(images, masks, generator, strength, group=len(part))
            cases = tuple(arrays.cases[int(row)] for row in part)
            yield Batch(normalise(images, benchmark.normalisation), masks, cases)

    return TargetStream(name, [(name, arrays.cases[int(row)]) for row in rows], batches)


def run_trial(
    model: Model, method: str, options: Mapping[str, Any], held_out: Sequence[Arrays], search: Search
) -> Trial:
    """Score one configuration over all hospitals; the adapter is reset at the start of each."""
    device, benchmark = next(model.network.parameters()).device, model.card.benchmark
    seed_all(search.seed)  # random methods then draw the same numbers in every trial
    targets = [hospital_stream(n, held_out, benchmark, search, device) for n in range(search.hospitals)]
    adapter = adapt(model, method, **options)
    rows, seconds = score_streams(adapter, targets, "online", benchmark.regions, measure=measure_dice)
    images = sum(len(target.images) for target in targets)
    dice = [value for *_, metric, value in rows if metric == "dice"]
    return Trial(dict(options), sum(dice) / len(dice), seconds / images)


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
) -> Tuned:
    """Try every configuration of a method and choose the best. A tie goes to the first, the defaults."""
    wanted, sites = configurations(method) if points is None else points, with_images(held_out)
    trials = [run_trial(model, method, options, sites, search) for options in wanted]
    best = max(trials, key=lambda trial: -math.inf if math.isnan(trial.dice) else trial.dice)
    return Tuned(method, best.options, best.dice, tuple(trials), images_found(sites, search))


def read_search(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Read the methods tuned so far. A file of another search raises instead of being overwritten."""
    if not path.exists():
        return {}
    try:
        found = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        methods = dict(found.pop("methods"))
    except (OSError, yaml.YAMLError, TypeError, ValueError, KeyError):
        raise UserError(f"{path} holds no search; choose another file or remove it") from None
    if other := {name: found.get(name) for name in {**found, **about} if found.get(name) != about.get(name)}:
        said = ", ".join(f"{name} {value}" for name, value in other.items())
        raise UserError(f"{path} holds another search ({said}); choose another file or remove it")
    return methods


def write_search(path: Path, about: Mapping[str, Any], methods: Mapping[str, Any]) -> None:
    """Write the search, and for each method the choice and every trial."""
    with atomic_file(path) as temporary:
        content = yaml.safe_dump({**about, "methods": dict(methods)}, sort_keys=False, allow_unicode=True)
        temporary.write_text(content, encoding="utf-8")


def search_record(tuned: Tuned) -> dict[str, Any]:
    """Return a tuning as yaml stores it: rounded scores in percent; `found` maps a hospital to its image count."""
    trials = [
        {**asdict(t), "dice": round(100 * t.dice, 3), "seconds": round(t.seconds, 5)} for t in tuned.trials
    ]
    return {
        "chosen": dict(tuned.chosen),
        "dice": round(100 * tuned.dice, 3),
        "found": dict(enumerate(tuned.found, 1)),
        "trials": trials,
    }
