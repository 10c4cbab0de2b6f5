"""Each method against the baseline, image by image with the same source model: gain, interval, test, harm, cost."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ttdg.adaptation import METHODS
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable, polars
from ttdg.evaluation import statistics as st
from ttdg.report.aggregate import (
    Group,
    TransferDifferences,
    by_transfer,
    differences,
    distinct,
    groups,
    image_dice,
    in_group,
    reduced,
    with_settings,
)
from ttdg.report.tables import SCORES, Cell, ReportTable, heading, score_table, with_notes
from ttdg.report.tuned_tables import tuned_tables

if TYPE_CHECKING:
    import polars as pl

HEADER = (
    "method", "Δ Dice", "95 % interval over transfers", "over images", "p, transfers", "p, images",
    "images harmed, %", "targets worse", "worst target", "image-weighted Dice", "ms/image", "peak MB",
    "forward calls/batch", "backward calls/batch",
)  # fmt: skip
PAIRED = 8  # columns that need a baseline
ALONE = "needs two images a batch and answers one as the source does"


def report_tables(table: RunTable) -> list[ReportTable]:
    """Every table of a run: the scores of each experiment, then what may be concluded from them."""
    means, images = with_settings(table, reduced(table)), image_dice(table)
    found = []
    for group in groups(table):
        mine, of_group = in_group(means, group), []
        for metric in (m for m in SCORES if m in distinct(mine, "metric")):
            of_group.append(score_table(mine, group, metric))
        regions = sorted(r for r in distinct(mine, "region") if r)  # a pack has them in another order
        for region in regions if len(regions) > 1 else ():
            of_group.append(score_table(mine.filter(polars().col("region") == region), group, "dice", region))
        of_group.append(comparison_table(table, mine, in_group(images, group), group))
        found += [with_notes(view, remarks(table, group.batch)) for view in of_group]
    return found + [with_notes(view, remarks(table)) for view in tuned_tables(table)]


def remarks(table: RunTable, batch: int | None = None) -> dict[str, str]:
    """What is to be said of rows, by label: that a method is a reconstruction (nobody published its code, nor all it
    would take to write it), or that this batch size is none for it."""
    jobs = ((entry.label, table.run.jobs[entry.job]) for entry in table.run.entries)
    methods = {label: METHODS.get(job.method) for label, job in jobs if isinstance(job, Scoring)}
    said = {
        label: "is a reconstruction" for label, method in methods.items() if method and method.reconstructed
    }
    if batch == 1:
        said |= {label: ALONE for label, method in methods.items() if method and "batch ≥ 2" in method.needs}
    return said


def comparison_table(
    table: RunTable, means: "pl.DataFrame", images: "pl.DataFrame", group: Group
) -> ReportTable:
    pl = polars()
    run, methods = table.run, distinct(images, "method")
    paired = differences(images, run.baseline)
    moved = {method: by_transfer(paired, method) for method in methods}
    others = [method for method in methods if method != run.baseline and moved[method]]
    over_transfers = st.holm([st.sign_flip_test(_means(moved[method])) for method in others])
    over_images = st.holm([st.wilcoxon(_images(moved[method])) for method in others])
    p = dict(zip(others, zip(over_transfers, over_images, strict=True), strict=True))
    rows = []
    for method in methods:
        gain = _gain(moved[method], run.harm, p[method]) if method in p else [Cell("")] * PAIRED
        weighted = images.filter(pl.col("method") == method)["dice"].to_numpy().mean()
        rows.append((Cell(method), *gain, number(float(weighted), 1), *_cost(table, means, method)))
    note = (
        f"against {run.baseline}; p is Holm-corrected over the methods (sign flips of transfers; signed ranks of "
        f"images, averaged over seeds); an image is harmed that loses more than {run.harm:g} Dice; memory is a "
        "GPU's, or a CPU worker's as a whole; views stacked into one call are one call"
    )
    return ReportTable(heading(group, "against the baseline"), HEADER, tuple(rows), note)


def _means(transfers: Sequence[TransferDifferences]) -> st.Values:
    return np.array([transfer.differences.mean() for transfer in transfers])


def _images(transfers: Sequence[TransferDifferences]) -> st.Values:
    return np.concatenate([transfer.differences for transfer in transfers])


def _gain(transfers: Sequence[TransferDifferences], lost: float, p: tuple[float, float]) -> list[Cell]:
    means, arrays = _means(transfers), [transfer.differences for transfer in transfers]
    over = st.bootstrap(arrays, resample_images=False) if len(arrays) > 1 else (math.nan, math.nan)
    within = st.bootstrap(arrays, resample_groups=False)
    harmed = 100 * st.harm(np.concatenate([transfer.by_seed for transfer in transfers]), lost)
    worst, worse = int(means.argmin()), int((means < 0).sum())
    return [
        Cell(f"{means.mean():+.2f}", float(means.mean())), interval(*over), interval(*within),
        chance(p[0]), chance(p[1]), number(harmed, 1), Cell(f"{worse} of {len(means)}", worse / len(means)),
        Cell(f"{transfers[worst].name} {means[worst]:+.1f}", float(means[worst])),
    ]  # fmt: skip


def _cost(table: RunTable, means: "pl.DataFrame", method: str) -> list[Cell]:
    mine = means.filter(polars().col("method") == method)
    about = [table.about[job] for job in distinct(mine, "job")]

    def total(name: str) -> float:
        return float(sum(line[name] for line in about))

    milliseconds = 1000 * total("adapting_seconds") / total("images")
    peak = max(line["peak_bytes"] for line in about) / 2**20
    passes = [total(name) / total("batches") for name in ("forwards", "backwards")]
    return [number(milliseconds, 1), number(peak, 0), *(number(value, 1) for value in passes)]


def number(value: float, digits: int) -> Cell:
    return Cell("–") if math.isnan(value) else Cell(f"{value:.{digits}f}", value)


def chance(p: float) -> Cell:
    return Cell("< 0.001", p) if p < 0.001 else number(p, 3)


def interval(low: float, high: float) -> Cell:
    return Cell("–") if math.isnan(low) else Cell(f"[{low:+.2f}, {high:+.2f}]", low)
