"""Tables as values, in the paper's form; every printed format is a function of these."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ttdg.bench.results import polars
from ttdg.evaluation import statistics as st
from ttdg.evaluation.protocols import STREAMS
from ttdg.report.aggregate import Group, column_name, distinct

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
    text: str
    value: float | None = None  # to sort by
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def with_notes(view: ReportTable, remarks: Mapping[str, str]) -> ReportTable:
    """The view, with what must be said of some of its rows."""
    words = [f"{row[0].text} {remarks[row[0].text]}" for row in view.rows if row[0].text in remarks]
    return replace(view, note="; ".join(filter(None, [view.note, *words])))


def heading(group: Group, what: str) -> str:
    return f"{group.experiment}: {what} ({group.protocol}; {STREAMS[group.stream]}; batch {group.batch})"


def score_table(means: "pl.DataFrame", group: Group, metric: str, region: str = "") -> ReportTable:
    """Methods by transfers; mean ± standard deviation over seeds, the best of each column marked."""
    pl = polars()
    mine = means.filter(pl.col("metric") == metric)
    per_seed = mine.group_by(["method", "sources", "target", "seed"], maintain_order=True).agg(
        pl.col("value").mean()
    )
    columns = list(dict.fromkeys(per_seed.select("sources", "target").iter_rows()))
    methods = distinct(per_seed, "method")
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
        heading(group, what), ("method", *names, "mean"), _marked(methods, values, metric), _seeds(mine)
    )


def _seeds(frame: "pl.DataFrame") -> str:
    count = frame["seed"].n_unique()
    return f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed: no spread is known"


def _marked(
    methods: Sequence[str], values: Mapping[tuple[str, int], list[float]], metric: str
) -> tuple[tuple[Cell, ...], ...]:
    width = 1 + max(number for _, number in values)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    shown = {place: round(st.mean_and_spread(v)[0], 1) for place, v in values.items() if v}
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
