"""All tables of a run, and the comparison of each method with the baseline on the same images and model."""

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ttdg.adaptation import METHODS
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable, import_polars
from ttdg.evaluation.records import PRIMARY
from ttdg.report.access import ACCESS_NOTE, Facts, rivals, row_facts, with_access
from ttdg.report.aggregate import (
    TableGroup,
    distinct_values,
    image_dice,
    join_settings,
    mean_scores,
    select_group,
    table_groups,
)
from ttdg.report.controls import compare_with_controls, number_cell
from ttdg.report.gap import ceiling_dice, gap_table, method_gaps, with_share
from ttdg.report.tables import PARTIAL, SCORES, Cell, ReportTable, score_table, table_title, with_notes
from ttdg.report.tuned_tables import tuned_tables
from ttdg.report.verified import verification_tables

if TYPE_CHECKING:
    import polars as pl

WEIGHTED = "image-weighted Dice"
COSTS = ("ms/image", "peak MB", "forward calls/batch", "backward calls/batch")
SINGLE_IMAGE_NOTE = "needs two images a batch and answers one as the source does"


def report_tables(table: RunTable) -> list[ReportTable]:
    """Return all tables of a run: scores and comparison of each group, then tuned options and verified records."""
    means, views, baseline = join_settings(table, mean_scores(table)), [], table.run.baseline
    dice = cache(lambda region: (image_dice(table, region), ceiling_dice(table, region)))
    for group in table_groups(table):
        mine, of_group, facts = select_group(means, group), [], row_facts(table, group.experiment)
        images, ceilings = dice("")
        images = select_group(images, group)
        gaps = method_gaps(images, ceilings, baseline)
        for metric in (m for m in SCORES if m in distinct_values(mine, "metric")):
            view = score_table(mine, group, metric, rivals(facts))
            of_group.append(with_share(view, gaps, baseline) if metric in PRIMARY else view)
        regions = sorted(r for r in distinct_values(mine, "region") if r)  # packed records have another order
        for region in regions if len(regions) > 1 else ():
            in_region = mine.filter(import_polars().col("region") == region)
            view = score_table(in_region, group, "dice", rivals(facts), region)
            if gaps:
                in_region, ceilings = dice(region)
                view = with_share(
                    view, method_gaps(select_group(in_region, group), ceilings, baseline), baseline
                )
            of_group.append(view)
        against = comparison_table(table, mine, images, group, facts)
        of_group.append(with_share(against, gaps, baseline, against.header.index(WEIGHTED)))
        if gaps:
            of_group.append(gap_table(gaps, group, baseline))
        notes = row_notes(table, group.batch)
        views += [with_notes(with_access(view, facts), notes) for view in of_group]
    views += [with_notes(view, row_notes(table)) for view in tuned_tables(table)]
    return [in_words_of_task(view, table) for view in views] + verification_tables(table)


def in_words_of_task(view: ReportTable, table: RunTable) -> ReportTable:
    """Write "accuracy" instead of "Dice" in the title, header and note of a table of a classification."""
    if "accuracy" not in distinct_values(table.rows, "metric"):
        return view
    title, note, *header = (
        text.replace("Dice", "accuracy") for text in (view.title, view.note, *view.header)
    )
    return replace(view, title=title, header=tuple(header), note=note)


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
    table: RunTable, means: "pl.DataFrame", images: "pl.DataFrame", group: TableGroup, facts: Facts
) -> ReportTable:
    """Compare each method of a group with the baseline and the best control, and state its harm, time and memory.

    Args:
        table: The run.
        means: Mean scores of the group's scorings.
        images: Dice per image of the group's scorings.
        group: The group.
        facts: Facts of the group's rows.
    """
    pl = import_polars()
    run, methods = table.run, distinct_values(images, "method")
    controls = [method for method in methods if facts[method].control]
    others = [method for method in methods if facts[method].other_model]
    gains = compare_with_controls(images, run.baseline, controls, run.harm, others)
    most = images.group_by("method").len()["len"].to_numpy().max()
    empty = {name: Cell("") for name in gains.columns}
    rows = []
    for method in methods:
        cells = gains.cells.get(method, empty)
        dice = images.filter(pl.col("method") == method)["dice"].to_numpy()
        weighted = number_cell(float(dice.mean()), 1)
        if len(dice) < most:
            weighted = replace(weighted, text=f"{weighted.text}{PARTIAL}")
        numbers = (weighted, *_cost(table, means, method))
        rows.append((Cell(method), *(cells[name] for name in gains.columns), *numbers))
    marked = any(row[-1 - len(COSTS)].text.endswith(PARTIAL) for row in rows)
    fewer = f"{PARTIAL} over fewer transfers or seeds than other rows; " if marked else ""
    note = (
        f"{gains.note}; {fewer}an image is harmed that loses more than {run.harm:g} Dice; memory is a GPU's, or a CPU "
        f"worker's as a whole; views stacked into one call are one call; {ACCESS_NOTE}"
    )
    header = ("method", *gains.columns, WEIGHTED, *COSTS)
    return ReportTable(table_title(group, "against the baseline"), header, tuple(rows), note)


def _cost(table: RunTable, means: "pl.DataFrame", method: str) -> list[Cell]:
    mine = means.filter(import_polars().col("method") == method)
    about = [table.about[job] for job in distinct_values(mine, "job")]

    def total(name: str) -> float:
        return float(sum(line[name] for line in about))

    milliseconds = 1000 * total("adapting_seconds") / total("images")
    peak = max(line["peak_bytes"] for line in about) / 2**20
    passes = [total(name) / total("batches") for name in ("forwards", "backwards")]
    return [number_cell(milliseconds, 1), number_cell(peak, 0), *(number_cell(value, 1) for value in passes)]
