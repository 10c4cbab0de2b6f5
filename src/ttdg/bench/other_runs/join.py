"""Joining the records of several runs of one benchmark: pieces from several machines, or of several versions.

A scoring is placed by its table, row, source sites, targets, stream, batch size and seed. Two versions of a method may
give the same place different keys, for instance because a default changed. The first run that has a record for a place
counts.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ttdg.bench.jobs import Job, Scoring
from ttdg.bench.results import RunTable, import_polars
from ttdg.bench.run_file import RunPlan, TableEntry
from ttdg.errors import UserError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class JoinedRuns:
    """The table of all runs.

    Attributes:
        table: All scorings that count.
        taken: Number of scorings of each run that count.
    """

    table: RunTable
    taken: tuple[int, ...]


def join_tables(tables: Sequence[RunTable]) -> JoinedRuns:
    """Join runs of the same name; entries without a record are left out.

    Raises:
        UserError: If a run has another name, baseline or limit of harm, or rows of other source models than the
            baseline that counts: gains over the baseline would compare two models.
    """
    first = tables[0].run
    entries: dict[Hashable, TableEntry] = {}
    owners: dict[str, int] = {}  # job → number of the run whose record counts
    for number, table in enumerate(tables):
        if (table.run.name, table.run.baseline, table.run.harm) != (first.name, first.baseline, first.harm):
            raise UserError(
                f"{table.folder} is the run {table.run.name!r} with the baseline {table.run.baseline!r}, and "
                f"{tables[0].folder} is {first.name!r} with {first.baseline!r}; join records of the same benchmark run"
            )
        for entry in table.run.entries:
            if entry.job in table.about and entries.setdefault(_place(entry, table), entry) is entry:
                owners.setdefault(entry.job, number)
    jobs: dict[str, Job] = {}
    for table in tables:
        jobs |= {key: job for key, job in table.run.jobs.items() if key not in jobs}
    run = replace(first, jobs=jobs, entries=tuple(entries.values()))
    if (other := _without_baseline(run)) is not None:
        raise UserError(
            f"{tables[owners[other.job]].folder}: the row {other.label!r} of {other.experiment!r} was scored with "
            "another source model than its baseline; join records of the same source models"
        )
    about = {job: tables[number].about[job] for job, number in owners.items()}
    taken = tuple(list(owners.values()).count(number) for number in range(len(tables)))
    return JoinedRuns(RunTable(run, _rows(tables, owners), about), taken)


def _place(entry: TableEntry, table: RunTable) -> Hashable:
    job = _scoring(entry, table.run)
    return entry.experiment, entry.label, entry.sources, job.targets, job.stream, job.batch, job.seed


def _without_baseline(run: RunPlan) -> TableEntry | None:
    """Return an entry whose source model has no row of the baseline, although another model of its table has one."""
    models: dict[Hashable, set[str]] = {}
    for entry in run.entries:
        if entry.label == run.baseline or entry.label.startswith(f"{run.baseline} ["):
            models.setdefault(_group(entry, run), set()).add(_scoring(entry, run).training)
    for entry in run.entries:
        known = models.get(_group(entry, run))
        if known is not None and _scoring(entry, run).training not in known:
            return entry
    return None


def _group(entry: TableEntry, run: RunPlan) -> Hashable:
    return entry.experiment, entry.sources, _scoring(entry, run).seed


def _scoring(entry: TableEntry, run: RunPlan) -> Scoring:
    job = run.jobs[entry.job]
    assert isinstance(job, Scoring)
    return job


def _rows(tables: Sequence[RunTable], owners: dict[str, int]) -> "pl.DataFrame":
    """Return the rows of every job, of the run whose record counts."""
    pl = import_polars()
    parts = []
    for number, table in enumerate(tables):
        own = [job for job, owner in owners.items() if owner == number]
        parts.append(
            table.rows.with_columns(pl.exclude("value").cast(pl.String)).filter(pl.col("job").is_in(own))
        )
    return pl.concat(parts).with_columns(pl.exclude("value").cast(pl.Categorical))
