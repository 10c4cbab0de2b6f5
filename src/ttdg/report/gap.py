"""The share of the gap to the ceiling that each method closes, as a column and as a table of transfers.

The ceiling is a model that was trained on the target's own training patients and scored on its held-out patients. Its
scores are those of the baseline's row in the experiments with the protocol `ceiling`. Method, baseline and ceiling are
averaged over the same images and seeds: those that all three scored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ttdg.bench.results import RunTable, import_polars
from ttdg.bench.run_file import is_baseline
from ttdg.evaluation.statistics import SMALLEST_GAP, gap_closed
from ttdg.report.aggregate import TableGroup, column_name, dice_differences, distinct_values, image_dice
from ttdg.report.tables import Cell, ReportTable, table_title

if TYPE_CHECKING:
    import polars as pl

SHARE = "share of the gap closed, %"
CEILING = "ceiling"  # name of the protocol


@dataclass(frozen=True)
class TransferGap:
    """Gain and gap for one transfer, in points of Dice.

    Attributes:
        name: Name of the transfer, as in the table header.
        gains: Method minus baseline per image, averaged over seeds; empty if the target has no ceiling.
        gaps: Ceiling minus baseline for the same images and seeds.
    """

    name: str
    gains: Float[np.ndarray, "n"]
    gaps: Float[np.ndarray, "n"]


Gaps = Mapping[str, Sequence[TransferGap]]  # method → its transfers in the order of the table


def ceiling_dice(table: RunTable, region: str = "") -> "pl.DataFrame":
    """Return the ceiling's Dice per seed and image, in percent; columns seed, site, case, ceiling.

    With `region`, Dice is that of the region; else it is averaged over regions.
    """
    pl = import_polars()
    whole, baseline = table.whole or table, table.run.baseline
    jobs = [e.job for e in whole.run.entries if e.protocol == CEILING and e.label == baseline]
    rows = whole.rows.filter(pl.col("job").cast(pl.String).is_in(jobs))
    images = image_dice(replace(whole, rows=rows), region)
    mine = images.filter((pl.col("protocol") == CEILING) & (pl.col("method") == baseline)).drop_nulls("dice")
    return mine.group_by(["seed", "site", "case"], maintain_order=True).agg(
        pl.col("dice").mean().alias("ceiling")
    )


def method_gaps(images: "pl.DataFrame", ceilings: "pl.DataFrame", baseline: str) -> Gaps:
    """Return the gains and gaps of every method of a group.

    The result is empty if no target of the group has a ceiling, and for the ceiling itself.

    Args:
        images: Dice per image of the group's scorings.
        ceilings: The result of `ceiling_dice`.
        baseline: Name of the baseline's row.
    """
    pl = import_polars()
    if ceilings.is_empty() or CEILING in distinct_values(images, "protocol"):
        return {}
    paired = dice_differences(images, baseline).drop_nulls("difference")
    joined = paired.join(ceilings, on=["seed", "site", "case"], how="left", maintain_order="left")
    joined = joined.with_columns((pl.col("ceiling") - pl.col("baseline")).alias("gap"))
    found: dict[str, list[TransferGap]] = {}
    keys = ["method", "protocol", "sources", "target"]
    for (method, protocol, sources, target), part in joined.group_by(keys, maintain_order=True):
        name = column_name(str(protocol), str(sources), str(target))
        found.setdefault(str(method), []).append(_transfer_gap(name, part))
    measured = any(len(transfer.gaps) for transfers in found.values() for transfer in transfers)
    return found if measured else {}


def _transfer_gap(name: str, part: "pl.DataFrame") -> TransferGap:
    """Average over seeds; a mixture of sites counts only if every one of them has a ceiling."""
    pl = import_polars()
    common = part.drop_nulls("gap")
    if common["site"].n_unique() < part["site"].n_unique():
        common = common.clear()
    means = common.group_by(["site", "case"], maintain_order=True).agg(pl.col("difference", "gap").mean())
    return TransferGap(name, means["difference"].to_numpy(), means["gap"].to_numpy())


def share_cell(transfers: Sequence[TransferGap]) -> Cell:
    """Format the share of the gap closed with its interval; a share that is not defined becomes a dash."""
    share, low, high = gap_closed([t.gains for t in transfers], [t.gaps for t in transfers])
    if math.isnan(share):
        return Cell("–")
    return Cell(f"{share:.1f}" + ("" if math.isnan(low) else f" [{low:.1f}, {high:.1f}]"), share)


def with_share(view: ReportTable, gaps: Gaps, baseline: str, place: int | None = None) -> ReportTable:
    """Insert the column at `place`, or at the end, and explain it in the note; without gaps nothing changes."""
    if not gaps:
        return view
    place = len(view.header) if place is None else place
    gaps = {method: transfers for method, transfers in gaps.items() if not is_baseline(method, baseline)}
    cells = {method: share_cell(transfers) for method, transfers in gaps.items()}
    rows = tuple((*row[:place], cells.get(row[0].text, Cell("")), *row[place:]) for row in view.rows)
    header = (*view.header[:place], SHARE, *view.header[place:])
    note = "; ".join(filter(None, [view.note, _legend(baseline)]))
    return replace(view, header=header, rows=rows, note=note)


def gap_table(gaps: Gaps, group: TableGroup, baseline: str) -> ReportTable:
    """Return the share of every method for each transfer and for all of them; the note states the gaps."""
    names = tuple(dict.fromkeys(transfer.name for transfers in gaps.values() for transfer in transfers))
    rows = []
    for method in (method for method in gaps if not is_baseline(method, baseline)):
        cells = {transfer.name: share_cell([transfer]) for transfer in gaps[method]}
        mine = (cells.get(name, Cell("–")) for name in names)
        rows.append((Cell(method), *mine, share_cell(gaps[method])))
    sizes = ", ".join(
        f"{t.name} {t.gaps.mean():.1f} (n = {len(t.gaps)})" for t in gaps.get(baseline, ()) if len(t.gaps)
    )
    note = f"{_legend(baseline)}; ceiling − {baseline} in points of Dice, with the number of images: {sizes}"
    return ReportTable(table_title(group, SHARE), ("method", *names, "all transfers"), tuple(rows), note)


def _legend(baseline: str) -> str:
    return (
        f"share of the gap closed: (method − {baseline}) / (ceiling − {baseline}) in Dice, on the images and seeds "
        "that all three scored; over transfers it is the ratio of the sums, with a 95 % interval over transfers; "
        f"a transfer with no ceiling or a gap below {SMALLEST_GAP:g} point shows a dash and is not in the sums"
    )
