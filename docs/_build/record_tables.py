"""Kinds of tables that hand-written pages show from one run of `docs/records`."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from methods_page import table
from packed import run_reports, run_table
from ttdg.adaptation import METHODS
from ttdg.bench.results import select_experiments
from ttdg.report.aggregate import dice_differences, distinct_values, image_dice, transfer_differences
from ttdg.report.controls import INTERVAL, compare_with_controls
from ttdg.report.gap import SHARE
from ttdg.report.tables import Cell

BASELINE = "source"
AGAINST = "against the baseline"
HARMED = "images harmed, %"
Row = Mapping[str, Cell]  # by column


@cache
def views(run: str, experiment: str, batch: int | None = None) -> Mapping[str, Mapping[str, Row]]:
    """The report's tables of an experiment by content; each maps a row's label to its cells."""
    found = {}
    for view in run_reports(run):
        mine = view.title.startswith(f"{experiment}: ")
        if mine and (batch is None or view.title.endswith(f" batch {batch})")):
            what = view.title.removeprefix(f"{experiment}: ").split(" (")[0]
            found[what] = {row[0].text: dict(zip(view.header, row, strict=True)) for row in view.rows}
    return found


def named(label: str) -> str:
    """A row's label: methods as code, without the settings of a grid."""
    name, comma, setting = re.sub(r" \[.*\]$", "", label).partition(", ")
    return f"`{name}`{comma}{setting}" if name in METHODS else f"{name}{comma}{setting}"


def named_with_settings(label: str) -> str:
    """A row's label: the method as code, then the settings of a grid."""
    name, _, settings = label.removesuffix("]").partition(" [")
    return f"{named(name)}, {settings.replace('=', ' ')}" if settings else named(name)


def signed(text: str) -> str:
    """The text with minus signs before numbers."""
    return re.sub(r"(?<!\w)-(?=\d)", "−", text)


def value(cell: Cell) -> float:
    """The number of a cell."""
    return float("nan") if cell.value is None else cell.value


def gain(row: Row, score: str, digits: int = 1) -> str:
    """The mean gain over transfers with its interval; empty for the baseline."""
    if row[f"Δ {score}"].value is None:
        return ""
    ends = re.sub(r"[-+][\d.]+", lambda found: f"{float(found[0]):+.{digits}f}", row[INTERVAL].text)
    return signed(f"{value(row[f'Δ {score}']):+.{digits}f} {ends}")


@cache
def foreground(run: str, experiment: str) -> Mapping[tuple[str, bool], Mapping[str, float]]:
    """Dice by target of each row, on slices with the structure (True) and without it (False).

    On a slice without the structure, Dice is 0 or 1, whatever the method. A slice is taken for one if no row of the
    whole run scores anything else there.
    """
    import polars as pl

    images = image_dice(run_table(run))
    between = (pl.col("dice") > 0) & (pl.col("dice") < 100)
    images = images.with_columns(between.any().over("site", "case").alias("structure"))
    mine = images.filter(pl.col("experiment").cast(pl.String) == experiment)
    found: dict[tuple[str, bool], dict[str, float]] = {}
    for (label, present, target), part in mine.group_by(["method", "structure", "target"]):
        found.setdefault((str(label), bool(present)), {})[str(target)] = float(part["dice"].to_numpy().mean())
    return found


def split_means(run: str, experiment: str, label: str) -> list[str]:
    """Dice on slices with the structure and without it, as means over targets."""
    found = (foreground(run, experiment)[label, present].values() for present in (True, False))
    return [f"{sum(values) / len(values):.1f}" for values in found]


def split_targets(run: str, experiment: str) -> str:
    """Dice at each target on slices with the structure, and without it."""
    labels = list(views(run, experiment)["Dice"])
    names = sorted(foreground(run, experiment)[BASELINE, True])
    lines = []
    for label in labels:
        pair = [foreground(run, experiment)[label, present] for present in (True, False)]
        lines.append((named(label), *(f"{part[name]:.1f}" for name in names for part in pair)))
    return table(("method", *(f"{name}, {what}" for name in names for what in ("with", "without"))), lines)


def methods(
    run: str,
    experiment: str,
    score: str,
    *more: str,
    digits: int = 1,
    cost: Sequence[str] = (),
    split: Sequence[str] = (),
) -> str:
    """Every method: its mean scores over targets, its gain over the source, its worst target and its harm."""
    found = views(run, experiment)
    lines = []
    for label, row in found[AGAINST].items():
        scores = [found[what][label]["mean"].text for what in (score, *more)]
        scores[1:1] = split_means(run, experiment, label) if split else ()
        harm = (signed(row["worst target"].text), row[HARMED].text, *(row[name].text for name in cost))
        lines.append((named(label), *scores, gain(row, score, digits), *harm))
    return table(("method", score, *split, *more, f"Δ {score}", "worst target", HARMED, *cost), lines)


@cache
def target_gains(run: str, experiment: str) -> Mapping[str, Mapping[str, float]]:
    """Mean gain of each row over the baseline at each target, on the same models and images."""
    images = image_dice(select_experiments(run_table(run), [experiment]))
    paired = dice_differences(images, BASELINE)
    return {
        label: {one.name: float(one.by_seed.mean()) for one in transfer_differences(paired, label)}
        for label in distinct_values(paired, "method")
    }


def by_target(
    run: str,
    experiments: Sequence[str],
    score: str,
    *more: str,
    share: bool = False,
    split: Sequence[str] = (),
    name: Callable[[str], str] = named,
) -> str:
    """Gain at each target. Rows of later experiments follow those of the first."""
    lines: list[tuple[str, ...]] = []
    for experiment in experiments:
        found = views(run, experiment)
        base = found[score][BASELINE]
        columns = [name for name in base if name not in ("method", "access", "mean", SHARE)]
        for label, row in found[score].items():
            if label == BASELINE and lines:
                continue
            against = found[AGAINST][label]
            changes = target_gains(run, experiment)[label]
            gains = [signed(f"{changes[name]:+.1f}") if name in changes else "" for name in columns]
            scores = [row[name].text for name in columns]
            middle = [*scores, row["mean"].text] if label == BASELINE else [*gains, gain(against, score)]
            middle += split_means(run, experiment, label) if split else ()
            ending = [*(found[what][label]["mean"].text for what in more), against[HARMED].text]
            ending += [signed(row[SHARE].text)] if share else []
            lines.append((name(label), *middle, *ending))
    return table(("method", *columns, "mean", *split, *more, HARMED, *([SHARE] if share else [])), lines)


def orders(run: str, experiments: Mapping[str, str]) -> str:
    """Gain in Dice of slices, and Dice of volumes, for each order of the slices."""
    found = {heading: views(run, experiment) for heading, experiment in experiments.items()}
    lines = []
    for label in list(found.values())[-1]["Dice"]:
        cells = [(gain(part[AGAINST][label], "Dice") or part["Dice"][label]["mean"].text,
                  part["Dice per volume"][label]["mean"].text) for part in found.values()]  # fmt: skip
        lines.append((named(label), *(text for pair in cells for text in pair)))
    heads = [f"{heading}: {what}" for heading in found for what in ("Δ Dice of slices", "Dice of volumes")]
    return table(("method", *heads), lines)


def grid(run: str, experiment: str, column: str, scale: int = 0) -> str:
    """Source and the paper's method for each value of a setting; `scale` multiplies a number."""
    found = views(run, experiment)
    images = image_dice(select_experiments(run_table(run), [experiment]))
    lines = []
    for label in found["Dice"]:
        if label.startswith("source ["):
            paper = label.replace("source", "paper", 1)
            dice = [found["Dice"][row]["mean"].text for row in (label, paper)]
            change = gain(compare_with_controls(images, label, [], 5.0).cells[paper], "Dice", 2)
            shown = str(scale * int(setting(label))) if scale else setting(label)
            lines.append((shown, *dice, change, found[AGAINST][paper]["ms/image"].text))
    return table((column, "source, Dice", "paper, Dice", "Δ Dice", "paper, ms/image"), lines)


def differences(
    run: str, experiments: Sequence[str], baseline: str, rows: str = "", score: str = "Dice"
) -> str:
    """Difference of the rows that begin with `rows` to one of them, on the same images and source models."""
    import polars as pl

    images = image_dice(select_experiments(run_table(run), list(experiments)))
    images = images.with_columns(pl.lit(rows).alias("experiment"))  # rows of several experiments are compared
    images = images.filter(pl.col("method").cast(pl.String).str.starts_with(rows))
    labels = (str(label) for label in distinct_values(images, "method"))
    (base,) = (label for label in labels if label == baseline or label.startswith(f"{baseline} ["))
    found = compare_with_controls(images, base, [], 5.0).cells
    lines = [
        (setting(label), gain(row, "Dice", 2), signed(row["worst target"].text), row[HARMED].text)
        for label, row in found.items()
    ]
    return table(("row", f"Δ {score} to {setting(base)}", "worst target", HARMED), lines)


def setting(label: str) -> str:
    """The value of a row with one setting; else the row's label."""
    return label.split("=")[1].removesuffix("]") if label.count("=") == 1 else named(label)


def batches(run: str, experiment: str, sizes: Sequence[int]) -> str:
    """Gain and time of the paper's method for each batch size."""
    lines = []
    for size in sizes:
        found = views(run, experiment, size)
        against = found[AGAINST]["paper, as printed"]
        source = found["Dice"][BASELINE]["mean"].text
        times = (found[AGAINST][BASELINE]["ms/image"].text, against["ms/image"].text, against["peak MB"].text)
        lines.append((str(size), source, gain(against, "Dice", 2), *times))
    return table(("batch", "source, Dice", "Δ Dice", "source, ms/image", "paper, ms/image", "peak MB"), lines)
