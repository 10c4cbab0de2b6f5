"""A benchmark run for the page: its tables, filtered, and the images behind a cell, the worst first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttdg.bench.results import PACKED_FILE, RunTable, import_polars, read_table
from ttdg.bench.run_file import read_run
from ttdg.errors import UserError
from ttdg.evaluation.records import SUFFIX
from ttdg.report.aggregate import (
    TableGroup,
    column_name,
    dice_differences,
    image_dice,
    select_group,
    table_groups,
)
from ttdg.report.comparison import report_tables
from ttdg.report.tables import SCORES, ReportTable, table_title

if TYPE_CHECKING:
    import polars as pl

FILTERS = ("experiment", "stream", "batch", "access")
MEAN = "mean"  # the last column of a table of scores


@dataclass(frozen=True)
class RunCounts:
    """How far a run is."""

    name: str
    benchmark: str
    done: int
    total: int


@dataclass(frozen=True)
class ShownTable:
    """A table with its group, by which it is filtered; None for tables of the whole run."""

    table: ReportTable
    group: int | None
    clickable: (
        bool  # the cells are mean Dice, and the baseline is scored: the images behind them can be compared
    )


@dataclass(frozen=True)
class OpenRun:
    """The records of a run at one moment."""

    table: RunTable

    @cached_property
    def groups(self) -> list[TableGroup]:
        """The groups of tables."""
        return table_groups(self.table)

    @cached_property
    def tables(self) -> list[ShownTable]:
        """All tables of the report."""
        return [self._placed(view) for view in report_tables(self.table)]

    @cached_property
    def images(self) -> "pl.DataFrame":
        """The Dice of every image, and its difference to the baseline."""
        return dice_differences(image_dice(self.table), self.table.run.baseline)

    def _placed(self, view: ReportTable) -> ShownTable:
        for number, group in enumerate(self.groups):
            before, after = table_title(group, "\0").split("\0")
            if view.title.startswith(before) and view.title.endswith(after):
                what = view.title.removeprefix(before).removesuffix(after)
                scored = what == SCORES["dice"] and not select_group(self.images, group).is_empty()
                return ShownTable(view, number, scored)
        return ShownTable(view, None, False)

    def choices(self) -> dict[str, list[str]]:
        """Return the values of each filter."""
        fields = {name: [str(getattr(group, name)) for group in self.groups] for name in FILTERS[:-1]}
        access = [row[1].text for shown in self.tables if shown.group is not None for row in shown.table.rows]
        return {name: list(dict.fromkeys(values)) for name, values in {**fields, "access": access}.items()}

    def filtered(self, wanted: Mapping[str, str]) -> list[ShownTable]:
        """Return the tables and rows that fit the filters; an empty value fits all."""
        shown = []
        for item in self.tables:
            group = None if item.group is None else self.groups[item.group]
            if any(
                wanted.get(n) and (group is None or str(getattr(group, n)) != wanted[n]) for n in FILTERS[:-1]
            ):
                continue
            rows = item.table.rows
            if wanted.get("access") and group is not None:
                rows = tuple(row for row in rows if row[1].text == wanted["access"])
            if rows:
                shown.append(replace(item, table=replace(item.table, rows=rows)))
        return shown

    def cell_images(self, group: int, method: str, column: str) -> list[dict[str, Any]]:
        """Return the images behind a cell, the worst first; values are means over seeds."""
        pl = import_polars()
        lines = self.in_column(group, column).filter(pl.col("method") == method)
        means = lines.group_by(["sources", "target", "site", "case"], maintain_order=True).agg(
            pl.col("dice", "baseline", "difference").mean(), pl.col("job").first()
        )
        return list(means.sort("dice", maintain_order=True).iter_rows(named=True))

    def in_column(self, group: int, column: str) -> "pl.DataFrame":
        """Return the images of one column of a group's table, or of all columns for the mean."""
        if not 0 <= group < len(self.groups):
            raise UserError("the run has no such table; reload the page")
        lines, protocol = select_group(self.images, self.groups[group]), self.groups[group].protocol
        if column == MEAN:
            return lines
        keep = [
            column_name(protocol, str(sources), str(target)) == column
            for sources, target in lines.select("sources", "target").iter_rows()
        ]
        return lines.filter(keep)


def count_records(folder: Path) -> RunCounts:
    """Return how many scorings of a run have a record."""
    run = read_run(folder)
    planned = {entry.job for entry in run.entries}
    if (folder / PACKED_FILE).is_file():
        done = len(planned)
    else:
        done = sum(
            path.name.removesuffix(SUFFIX) in planned for path in (folder / "records").glob(f"*{SUFFIX}")
        )
    benchmark = run.config.get("benchmark") or run.config.get("synthetic") or ""
    return RunCounts(run.name, str(benchmark.get("variant", "") if isinstance(benchmark, dict) else benchmark), done,
                     len(planned))  # fmt: skip


def open_run(folder: Path) -> OpenRun:
    """Return the records of a run as they are now; they are read again only if one was added or changed."""
    paths: Sequence[Path] = [
        folder / "run.json",
        folder / PACKED_FILE,
        *(folder / "records").glob(f"*{SUFFIX}"),
    ]
    stamps = [path.stat().st_mtime_ns for path in paths if path.exists()]
    return _opened(folder, len(stamps), max(stamps, default=0))


@lru_cache(maxsize=4)
def _opened(folder: Path, count: int, newest: int) -> OpenRun:
    return OpenRun(read_table(folder))
