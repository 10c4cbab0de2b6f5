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
    "alignment_max": "E_φ^max",
    "structure": "S_α",
    "hd95": "HD95, pixels",
    "assd": "ASSD, pixels",
    "instance_dice": "instance-only Dice of the official code (not Dice: what is missed does not count)",
}
LOWER_IS_BETTER = ("hd95", "assd")


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
    return f"{group.experiment}: {what} ({group.protocol}; {STREAMS[group.stream]}; batch {group.batch})"


def score_table(means: "pl.DataFrame", group: TableGroup, metric: str, region: str = "") -> ReportTable:
    """Return a table of methods by transfers: mean ± standard deviation over seeds, the best of each column marked."""
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
        _score_rows(methods, values, metric),
        _seeds_note(mine),
    )


def _seeds_note(frame: "pl.DataFrame") -> str:
    count = frame["seed"].n_unique()
    return f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed: no spread is known"


def _score_rows(
    methods: Sequence[str], values: Mapping[tuple[str, int], list[float]], metric: str
) -> tuple[tuple[Cell, ...], ...]:
    width = 1 + max(number for _, number in values)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    shown = {cell: round(st.mean_and_spread(v)[0], 1) for cell, v in values.items() if v}
    best = [
        max((sign * shown[m, n] for m in methods if (m, n) in shown), default=math.nan) for n in range(width)
    ]
    rows = []
    for method in methods:
        cells = [Cell(method)]
        for number in range(width):
            mean, spread = (
                st.mean_and_spread(values[method, number]) if values[method, number] else (math.nan,) * 2
            )
            text = (
                "–"
                if math.isnan(mean)
                else f"{mean:.1f}" + ("" if math.isnan(spread) else f" ± {spread:.1f}")
            )
            top = len(methods) > 1 and sign * shown.get((method, number), math.nan) == best[number]
            cells.append(Cell(text, None if math.isnan(mean) else mean, top))
        rows.append(tuple(cells))
    return tuple(rows)
