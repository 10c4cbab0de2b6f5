"""All tables of a run, and the comparison of each method with the baseline on the same images and model."""

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ttdg.adaptation import METHODS
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable, import_polars
from ttdg.evaluation import statistics as st
from ttdg.report.aggregate import (
    TableGroup,
    TransferDifferences,
    dice_differences,
    distinct_values,
    image_dice,
    join_settings,
    mean_scores,
    select_group,
    table_groups,
    transfer_differences,
)
from ttdg.report.gap import ceiling_dice, gap_table, method_gaps, with_share
from ttdg.report.tables import SCORES, Cell, ReportTable, score_table, table_title, with_notes
from ttdg.report.tuned_tables import tuned_tables

if TYPE_CHECKING:
    import polars as pl

HEADER = (
    "method", "Δ Dice", "95 % interval over transfers", "over images", "p, transfers", "p, images",
    "images harmed, %", "targets worse", "worst target", "image-weighted Dice", "ms/image", "peak MB",
    "forward calls/batch", "backward calls/batch",
)  # fmt: skip
PAIRED = 8  # number of columns that need a baseline
SINGLE_IMAGE_NOTE = "needs two images a batch and answers one as the source does"


def report_tables(table: RunTable) -> list[ReportTable]:
    """Return all tables of a run: scores and comparison of each group, then the tuned options."""
    means, views, baseline = join_settings(table, mean_scores(table)), [], table.run.baseline
    dice = cache(lambda region: (image_dice(table, region), ceiling_dice(table, region)))
    for group in table_groups(table):
        mine, of_group = select_group(means, group), []
        images, ceilings = dice("")
        images = select_group(images, group)
        gaps = method_gaps(images, ceilings, baseline)
        for metric in (m for m in SCORES if m in distinct_values(mine, "metric")):
            view = score_table(mine, group, metric)
            of_group.append(with_share(view, gaps, baseline) if metric == "dice" else view)
        regions = sorted(r for r in distinct_values(mine, "region") if r)  # packed records have another order
        for region in regions if len(regions) > 1 else ():
            in_region = mine.filter(import_polars().col("region") == region)
            view = score_table(in_region, group, "dice", region)
            if gaps:
                in_region, ceilings = dice(region)
                view = with_share(
                    view, method_gaps(select_group(in_region, group), ceilings, baseline), baseline
                )
            of_group.append(view)
        against = comparison_table(table, mine, images, group)
        of_group.append(with_share(against, gaps, baseline, PAIRED + 1))
        if gaps:
            of_group.append(gap_table(gaps, group, baseline))
        views += [with_notes(view, row_notes(table, group.batch)) for view in of_group]
    return views + [with_notes(view, row_notes(table)) for view in tuned_tables(table)]


def row_notes(table: RunTable, batch: int | None = None) -> dict[str, str]:
    """Return notes on table rows by label.

    A note marks a reconstruction, that is, a method without published code or a complete description, and with
    `batch=1` a method that cannot adapt to a single image.
    """
    jobs = ((entry.label, table.run.jobs[entry.job]) for entry in table.run.entries)
    methods = {label: METHODS.get(job.method) for label, job in jobs if isinstance(job, Scoring)}
    notes = {
        label: "is a reconstruction" for label, method in methods.items() if method and method.reconstructed
    }
    if batch == 1:
        single = (label for label, method in methods.items() if method and "batch ≥ 2" in method.needs)
        notes |= dict.fromkeys(single, SINGLE_IMAGE_NOTE)
    return notes


def comparison_table(
    table: RunTable, means: "pl.DataFrame", images: "pl.DataFrame", group: TableGroup
) -> ReportTable:
    """Compare each method of a group with the baseline: gain, intervals, tests, harm, time and memory.

    Args:
        table: The run.
        means: Mean scores of the group's scorings.
        images: Dice per image of the group's scorings.
        group: The group.
    """
    pl = import_polars()
    run, methods = table.run, distinct_values(images, "method")
    paired = dice_differences(images, run.baseline)
    by_method = {method: transfer_differences(paired, method) for method in methods}
    others = [method for method in methods if method != run.baseline and by_method[method]]
    over_transfers = st.holm([st.sign_flip_test(_means(by_method[method])) for method in others])
    over_images = st.holm([st.wilcoxon(_image_values(by_method[method])) for method in others])
    p = dict(zip(others, zip(over_transfers, over_images, strict=True), strict=True))
    rows = []
    for method in methods:
        gain = _gain(by_method[method], run.harm, p[method]) if method in p else [Cell("")] * PAIRED
        weighted = images.filter(pl.col("method") == method)["dice"].to_numpy().mean()
        rows.append((Cell(method), *gain, number_cell(float(weighted), 1), *_cost(table, means, method)))
    note = (
        f"against {run.baseline}; p is Holm-corrected over the methods (sign flips of transfers; signed ranks of "
        f"images, averaged over seeds); an image is harmed that loses more than {run.harm:g} Dice; memory is a "
        "GPU's, or a CPU worker's as a whole; views stacked into one call are one call"
    )
    return ReportTable(table_title(group, "against the baseline"), HEADER, tuple(rows), note)


def _means(transfers: Sequence[TransferDifferences]) -> st.Values:
    return np.array([transfer.differences.mean() for transfer in transfers])


def _image_values(transfers: Sequence[TransferDifferences]) -> st.Values:
    return np.concatenate([transfer.differences for transfer in transfers])


def _gain(transfers: Sequence[TransferDifferences], lost: float, p: tuple[float, float]) -> list[Cell]:
    means, arrays = _means(transfers), [transfer.differences for transfer in transfers]
    over = st.bootstrap(arrays, resample_images=False) if len(arrays) > 1 else (math.nan, math.nan)
    within = st.bootstrap(arrays, resample_groups=False)
    harmed = 100 * st.harm(np.concatenate([transfer.by_seed for transfer in transfers]), lost)
    worst, worse = int(means.argmin()), int((means < 0).sum())
    return [
        Cell(f"{means.mean():+.2f}", float(means.mean())),
        interval_cell(*over),
        interval_cell(*within),
        p_value_cell(p[0]),
        p_value_cell(p[1]),
        number_cell(harmed, 1),
        Cell(f"{worse} of {len(means)}", worse / len(means)),
        Cell(f"{transfers[worst].name} {means[worst]:+.1f}", float(means[worst])),
    ]


def _cost(table: RunTable, means: "pl.DataFrame", method: str) -> list[Cell]:
    mine = means.filter(import_polars().col("method") == method)
    about = [table.about[job] for job in distinct_values(mine, "job")]

    def total(name: str) -> float:
        return float(sum(line[name] for line in about))

    milliseconds = 1000 * total("adapting_seconds") / total("images")
    peak = max(line["peak_bytes"] for line in about) / 2**20
    passes = [total(name) / total("batches") for name in ("forwards", "backwards")]
    return [number_cell(milliseconds, 1), number_cell(peak, 0), *(number_cell(value, 1) for value in passes)]


def number_cell(value: float, digits: int) -> Cell:
    """Format a number; NaN becomes a dash."""
    return Cell("–") if math.isnan(value) else Cell(f"{value:.{digits}f}", value)


def p_value_cell(p: float) -> Cell:
    """Format a p value with three digits."""
    return Cell("< 0.001", p) if p < 0.001 else number_cell(p, 3)


def interval_cell(low: float, high: float) -> Cell:
    """Format a confidence interval; NaN becomes a dash."""
    return Cell("–") if math.isnan(low) else Cell(f"[{low:+.2f}, {high:+.2f}]", low)
