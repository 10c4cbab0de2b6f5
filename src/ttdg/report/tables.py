"""Report tables as values, in the paper's layout; `ttdg.report.formats` prints them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

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
PARTIAL = "*"  # behind a score that lacks seeds or transfers which another row has
PARTIAL_NOTE = (
    f"; {PARTIAL} some seeds of this table are missing, and – in the last column says that a transfer is: compare "
    "the gain over the baseline, which takes the same models and images"
)
BySeed = dict[int, float]  # seed → score at one transfer
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
    scores = mine.group_by(["method", "sources", "target", "seed"], maintain_order=True).agg(
        pl.col("value").mean()
    )
    columns = list(dict.fromkeys(scores.select("sources", "target").iter_rows()))
    by_seed: dict[str, list[BySeed]] = {m: [{} for _ in columns] for m in distinct_values(scores, "method")}
    for method, sources, target, seed, value in scores.sort("seed").drop_nulls("value").iter_rows():
        by_seed[method][columns.index((sources, target))][seed] = value
    names = [column_name(group.protocol, *column) for column in columns]
    what = SCORES[metric] + (f" of {region}" if region else "")
    partial = _partial_rows(by_seed)
    return ReportTable(
        table_title(group, what),
        ("method", *names, "mean"),
        _score_rows(by_seed, partial, metric, rivals),
        _seeds_note(mine) + (PARTIAL_NOTE if partial else ""),
    )


def _partial_rows(by_seed: Mapping[str, Sequence[BySeed]]) -> set[str]:
    """Return the rows that lack a transfer and seed which another row of the table has."""
    scored = [
        {(number, seed) for number, row in enumerate(rows) for seed in row} for rows in by_seed.values()
    ]
    every = set().union(*scored)
    return {method for method, mine in zip(by_seed, scored, strict=True) if mine < every}


def _seeds_note(frame: "pl.DataFrame") -> str:
    count = frame["seed"].n_unique()
    spread = f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed: no spread is known"
    return f"{spread}; the best of each access is marked"


def _score_rows(
    by_seed: Mapping[str, Sequence[BySeed]], partial: set[str], metric: str, rivals: Rivals
) -> tuple[tuple[Cell, ...], ...]:
    """One row for each method: its transfers, and their mean. A score that lacks seeds is never the best."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    every = [set().union(*column) for column in zip(*by_seed.values(), strict=True)]
    cells = {
        method: [
            *(
                _score_cell(list(mine.values()), mine.keys() < seeds)
                for mine, seeds in zip(rows, every, strict=True)
            ),
            _mean_cell(rows, method in partial),
        ]
        for method, rows in by_seed.items()
    }
    compared: dict[str, list[str]] = {}
    for method in by_seed:
        if (name := rivals.get(method)) is not None:
            compared.setdefault(name, []).append(method)
    for others in compared.values():
        for number in range(len(next(iter(cells.values())))):
            shown = {
                method: sign * round(cell.value, 1)
                for method in others
                if (cell := cells[method][number]).value is not None and not cell.text.endswith(PARTIAL)
            }
            for method in _largest(shown) if len(others) > 1 else ():
                cells[method][number] = replace(cells[method][number], best=True)
    return tuple((Cell(method), *row) for method, row in cells.items())


def _largest(values: Mapping[str, float]) -> list[str]:
    """Return the keys with the largest value; NaN is never the largest."""
    top = max((value for value in values.values() if not math.isnan(value)), default=math.nan)
    return [key for key, value in values.items() if value == top]


def _score_cell(by_seed: Sequence[float], partial: bool) -> Cell:
    mean, spread = st.mean_and_spread(by_seed) if by_seed else (math.nan, math.nan)
    if math.isnan(mean):
        return Cell("–")
    spread_text = "" if math.isnan(spread) else f" ± {spread:.1f}"
    return Cell(f"{mean:.1f}{spread_text}{PARTIAL if partial else ''}", mean)


def _mean_cell(rows: Sequence[BySeed], partial: bool) -> Cell:
    """Mean over the transfers, each the mean over its seeds; a dash if a transfer is missing."""
    if not all(rows):
        return Cell("–")
    if all(row.keys() == rows[0].keys() for row in rows):
        means = [float(np.mean([row[seed] for row in rows])) for seed in rows[0]]
    else:  # no spread: a seed without a transfer has another mean
        means = [float(np.mean([np.mean(list(row.values())) for row in rows]))]
    return _score_cell(means, partial)
