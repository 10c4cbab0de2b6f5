"""Curves along one axis, from records: Dice and time against universe size, batch size, or any number of a grid."""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ttdg.bench.jobs import Fitting, Scoring, Training
from ttdg.bench.results import RunTable


@dataclass(frozen=True)
class Point:
    value: float
    dice: float  # mean over targets and seeds, in percent
    milliseconds: float  # an image


@dataclass(frozen=True)
class Axis:
    """One method along one setting, everything else the same."""

    experiment: str
    method: str
    setting: str
    points: tuple[Point, ...]


def axes(table: RunTable) -> list[Axis]:
    """Every setting of a grid, and the batch, that takes several numbers in a table while all else is the same."""
    scored: dict[tuple[str, str], list[tuple[dict[str, str], Point]]] = defaultdict(list)
    for entry in table.run.entries:
        job = table.run.jobs[entry.job]
        if entry.job in table.about and isinstance(job, Scoring):
            about = table.about[entry.job]
            milliseconds = 1000 * about["adapting_seconds"] / about["images"]
            dice = 100 * float(np.mean(list(about["dice"].values())))
            scored[entry.experiment, job.method].append(
                (_settings(table, job), Point(0.0, dice, milliseconds))
            )
    found = []
    for (experiment, method), lines in scored.items():
        labels = [entry.label for entry in table.run.entries if entry.experiment == experiment]
        names = dict.fromkeys(name for settings, _ in lines for name in settings)
        for name in (n for n in names if n == "batch" or any(f"{n}=" in label for label in labels)):
            found += [
                Axis(experiment, _title(method, rest), name, points) for rest, points in _along(name, lines)
            ]
    return found


def _settings(table: RunTable, job: Scoring) -> dict[str, str]:
    """All that was asked of a scoring, as text: batch, stream, options, and settings of the parts.

    Options that were tuned are no axis: they differ from split to split, and nobody asked for them.
    """
    training = table.run.jobs[job.training]
    assert isinstance(training, Training)
    values = {f"recipe.{name}": repr(value) for name, value in training.recipe.items() if name != "seed"}
    values |= {"batch": str(job.batch), "stream": job.stream, **job.defaults}
    values |= {name: repr(value) for name, value in job.options.items()}
    for part, key in job.fittings.items():
        fitting = table.run.jobs[key]
        assert isinstance(fitting, Fitting)
        values |= {f"{part}.{name}": repr(value) for name, value in fitting.settings.items()}
    return values


def _along(
    name: str, lines: list[tuple[dict[str, str], Point]]
) -> list[tuple[dict[str, str], tuple[Point, ...]]]:
    """The lines that differ in `name` alone, as curves of at least two numbers; seeds and targets are averaged."""
    curves: dict[tuple[tuple[str, str], ...], dict[float, list[Point]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for settings, point in lines:
        value = _number(settings.get(name, ""))
        if not math.isnan(value):
            rest = tuple(sorted((key, text) for key, text in settings.items() if key != name))
            curves[rest][value].append(point)
    return [
        (dict(rest), tuple(_mean(value, curve[value]) for value in sorted(curve)))
        for rest, curve in curves.items()
        if len(curve) > 1
    ]


def _mean(value: float, points: list[Point]) -> Point:
    dice, milliseconds = ([getattr(p, name) for p in points] for name in ("dice", "milliseconds"))
    return Point(value, float(np.mean(dice)), float(np.mean(milliseconds)))


def _title(method: str, rest: dict[str, str]) -> str:
    return f"{method} ({rest['stream']})" if "stream" in rest else method


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
