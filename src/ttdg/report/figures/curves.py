"""Curves of Dice and time against one numeric setting, such as the universe size or the batch size."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ttdg.bench.jobs import Fitting, Scoring, Training
from ttdg.bench.results import RunTable
from ttdg.evaluation.records import primary_scores


@dataclass(frozen=True)
class CurvePoint:
    """A point of a curve: a value of the setting with mean Dice and time."""

    value: float
    dice: float  # mean over targets and seeds, in percent
    milliseconds: float  # per image


@dataclass(frozen=True)
class Curve:
    """Results of one method for several values of one setting; all other settings are equal."""

    experiment: str
    method: str
    setting: str
    points: tuple[CurvePoint, ...]


def find_curves(table: RunTable) -> list[Curve]:
    """Return a curve for each grid setting, and for the batch size, that has several values in a table."""
    scored: dict[tuple[str, str], list[tuple[dict[str, str], CurvePoint]]] = defaultdict(list)
    for entry in table.run.entries:
        job = table.run.jobs[entry.job]
        if entry.job in table.about and isinstance(job, Scoring):
            about = table.about[entry.job]
            milliseconds = 1000 * about["adapting_seconds"] / about["images"]
            dice = 100 * float(np.mean(list(primary_scores(about).values())))
            scored[entry.experiment, job.method].append(
                (_settings(table, job), CurvePoint(0.0, dice, milliseconds))
            )
    found = []
    for (experiment, method), lines in scored.items():
        labels = [entry.label for entry in table.run.entries if entry.experiment == experiment]
        names = dict.fromkeys(name for settings, _ in lines for name in settings)
        for name in (n for n in names if n == "batch" or any(f"{n}=" in label for label in labels)):
            curves = _along(name, lines)
            varied = [key for key in names if len({rest.get(key) for rest, _ in curves}) > 1]
            found += [
                Curve(experiment, _title(method, rest, varied), name, points) for rest, points in curves
            ]
    return found


def _settings(table: RunTable, job: Scoring) -> dict[str, str]:
    """Return the requested settings of a scoring as text: recipe, batch, stream, options, and settings of parts.

    Tuned options are left out: they were not requested, and they differ between splits.
    """
    training = table.run.jobs[job.training]
    assert isinstance(training, Training)
    values = {f"recipe.{name}": repr(value) for name, value in training.recipe.items() if name != "seed"}
    values |= {"batch": str(job.batch), "stream": job.stream, **job.defaults}
    values |= {"views": job.views, "statistics": job.statistics, "learn": job.learn}
    values |= {name: repr(value) for name, value in job.options.items()}
    for part, key in job.fittings.items():
        fitting = table.run.jobs[key]
        assert isinstance(fitting, Fitting)
        values |= {f"{part}.{name}": repr(value) for name, value in fitting.settings.items()}
    return values


def _along(
    name: str, lines: list[tuple[dict[str, str], CurvePoint]]
) -> list[tuple[dict[str, str], tuple[CurvePoint, ...]]]:
    """Group the results that differ only in `name` into curves of at least two values.

    Values are averaged over seeds and targets.
    """
    curves: dict[tuple[tuple[str, str], ...], dict[float, list[CurvePoint]]] = defaultdict(
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


def _mean(value: float, points: list[CurvePoint]) -> CurvePoint:
    dice, milliseconds = ([getattr(p, name) for p in points] for name in ("dice", "milliseconds"))
    return CurvePoint(value, float(np.mean(dice)), float(np.mean(milliseconds)))


def _title(method: str, rest: dict[str, str], varied: Sequence[str]) -> str:
    """Return the name of a curve: the method, its stream, and what other curves of the same setting have otherwise."""
    others = [f"{name}={rest.get(name, '–')}" for name in varied if name != "stream"]
    said = [*([rest["stream"]] if "stream" in rest else []), *others]
    return f"{method} ({', '.join(said)})" if said else method


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
