"""Report tables as values, in the paper's layout; `ttdg.report.formats` prints them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ttdg.bench.protocols import STREAMS
from ttdg.bench.results import import_polars
from ttdg.evaluation import statistics as st
from ttdg.report.aggregate import TableGroup, column_name, distinct_values

if TYPE_CHECKING:
    import polars as pl

SCORES: Mapping[str, str] = {
    "dice": "Dice",
    "accuracy": "accuracy",
    "alignment_max": "E_φ^max",
    "structure": "S_α",
    "hd95": "HD95, pixels",
    "assd": "ASSD, pixels",
    "volume_dice": "Dice per volume",
    "volume_hd95_voxels": "HD95 per volume, voxels",
    "volume_assd_voxels": "ASSD per volume, voxels",
    "volume_hd95_mm": "HD95 per volume, mm",
    "volume_assd_mm": "ASSD per volume, mm",
    "instance_dice": "instance-only Dice of the official code (not Dice: what is missed does not count)",
}
LOWER_IS_BETTER = tuple(name for name in SCORES if "hd95" in name or "assd" in name)
Rivals = Mapping[
    str, str | None
]  # label → rows among which the best is marked; None: this row is never marked


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, a number to sort by, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table with a title, a header, rows, and a note below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def with_notes(view: ReportTable, remarks: Mapping[str, str]) -> ReportTable:
    """Append notes on individual rows, by row label, to the note of a table."""
    words = [f"{row[0].text} {remarks[row[0].text]}" for row in view.rows if row[0].text in remarks]
    return replace(view, note="; ".join(filter(None, [view.note, *words])))


def table_title(group: TableGroup, what: str) -> str:
    """Return the title of a table: experiment, content, protocol, stream and batch size."""
    stream = STREAMS.get(group.stream, group.stream)  # a damaged plan may name any
    return f"{group.experiment}: {what} ({group.protocol}; {stream}; batch {group.batch})"


def score_table(
    means: "pl.DataFrame", group: TableGroup, metric: str, rivals: Rivals, region: str = ""
) -> ReportTable:
    """Return a table of methods by transfers: mean ± standard deviation over seeds, the best of each column marked.

    Args:
        means: Mean scores of the group's scorings.
        group: The group.
        metric: A key of SCORES.
        rivals: The rows among which the best is marked.
        region: Region of the scores, for the title.
    """
    pl = import_polars()
    mine = means.filter(pl.col("metric") == metric)
    per_seed = mine.group_by(["method", "sources", "target", "seed"], maintain_order=True).agg(
        pl.col("value").mean()
    )
    columns = list(dict.fromkeys(per_seed.select("sources", "target").iter_rows()))
    methods = distinct_values(per_seed, "method")
    values: dict[tuple[str, int], list[float]] = {}
    for method in methods:
        part = per_seed.filter(pl.col("method") == method)
        for number, (sources, target) in enumerate(columns):
            here = part.filter((pl.col("sources") == sources) & (pl.col("target") == target)).sort("seed")
            values[method, number] = here["value"].drop_nulls().to_list()
        averages = part.group_by("seed").agg(pl.col("value").mean()).sort("seed")
        values[method, len(columns)] = averages["value"].drop_nulls().to_list()
    names = [column_name(group.protocol, *column) for column in columns]
    what = SCORES[metric] + (f" of {region}" if region else "")
    return ReportTable(
        table_title(group, what),
        ("method", *names, "mean"),
        _score_rows(methods, values, metric, rivals),
        _seeds_note(mine),
    )


def _seeds_note(frame: "pl.DataFrame") -> str:
    count = frame["seed"].n_unique()
    spread = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed: no spread is known"
    return f"{spread}; the best of each access is marked"


def _score_rows(
    methods: Sequence[str], values: Mapping[tuple[str, int], list[float]], metric: str, rivals: Rivals
) -> tuple[tuple[Cell, ...], ...]:
    width = 1 + max(number for _, number in values)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    shown = {cell: sign * round(st.mean_and_spread(v)[0], 1) for cell, v in values.items() if v}
    compared: dict[str, list[str]] = {}
    for method in methods:
        if (name := rivals.get(method)) is not None:
            compared.setdefault(name, []).append(method)
    best = {
        (method, number)
        for others in compared.values() if len(others) > 1
        for number in range(width)
        for method in _largest({m: shown[m, number] for m in others if (m, number) in shown})
    }  # fmt: skip
    return tuple(
        (Cell(method), *(_score_cell(values[method, n], (method, n) in best) for n in range(width)))
        for method in methods
    )


def _largest(values: Mapping[str, float]) -> list[str]:
    """Return the keys with the largest value; NaN is never the largest."""
    top = max((value for value in values.values() if not math.isnan(value)), default=math.nan)
    return [key for key, value in values.items() if value == top]


def _score_cell(by_seed: list[float], best: bool) -> Cell:
    mean, spread = st.mean_and_spread(by_seed) if by_seed else (math.nan, math.nan)
    if math.isnan(mean):
        return Cell("–")
    return Cell(f"{mean:.1f}" + ("" if math.isnan(spread) else f" ± {spread:.1f}"), mean, best)
