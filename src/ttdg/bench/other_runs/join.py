"""Joining the records of several runs of one benchmark: pieces from several machines, or of several versions.

A scoring is placed by its table, row, source sites, targets, stream, batch size and seed. Two versions of a method may
give the same place different keys, for instance because a default changed. The first run that has a record for a place
counts.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ttdg.bench.jobs import Job, Scoring
from ttdg.bench.results import RunTable, import_polars
from ttdg.bench.run_file import RunPlan, TableEntry, is_baseline
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
        UserError: If a run has another name, baseline or limit of harm, or rows of other source models, weights or
            images than the baseline that counts: gains over the baseline would compare two models, or two sets of
            images.
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
    if (found := _without_baseline(run)) is not None:
        other, what = found
        raise UserError(
            f"{tables[owners[other.job]].folder}: the row {other.label!r} of {other.experiment!r} was scored with "
            f"{what} than its baseline; join records of the same source models and images"
        )
    about = {job: tables[number].about[job] for job, number in owners.items()}
    if (unlike := _with_other_weights(run, about)) is not None:
        raise UserError(
            f"{tables[owners[unlike.job]].folder}: the row {unlike.label!r} of {unlike.experiment!r} was scored with "
            "other weights of the same source model than its baseline; train once and use its weights in all runs "
            "(`ttdg bench --models`), or join runs whose models are identical"
        )
    taken = tuple(list(owners.values()).count(number) for number in range(len(tables)))
    return JoinedRuns(RunTable(run, _rows(tables, owners), about), taken)


def _place(entry: TableEntry, table: RunTable) -> Hashable:
    job = _scoring(entry, table.run)
    return entry.experiment, entry.label, entry.sources, job.targets, job.stream, job.batch, job.seed


def _without_baseline(run: RunPlan) -> tuple[TableEntry, str] | None:
    """Return an entry that no row of the baseline can be compared with, and what differs from that row.

    Entries of a table without the baseline are passed over.
    """
    models: dict[Hashable, set[str]] = {}
    images: dict[Hashable, set[Hashable]] = {}
    for entry in run.entries:
        if is_baseline(entry.label, run.baseline):
            models.setdefault(_group(entry, run), set()).add(_scoring(entry, run).training)
            images.setdefault(_stream(entry, run), set()).add(_images(entry, run))
    for entry in run.entries:
        known = models.get(_group(entry, run))
        if known is not None and _scoring(entry, run).training not in known:
            return entry, "another source model"
        if _images(entry, run) not in images.get(_stream(entry, run), {_images(entry, run)}):
            return entry, "other images (their files, `limit`, `cases`, `shuffle` or `order`)"
    return None


def _with_other_weights(run: RunPlan, about: Mapping[str, Mapping[str, Any]]) -> TableEntry | None:
    """Return an entry whose source model has other weights than that of its baseline, though it was trained alike."""
    weights: dict[Hashable, set[Any]] = {}
    for entry in run.entries:
        if is_baseline(entry.label, run.baseline):
            weights.setdefault(_scoring(entry, run).training, set()).add(about[entry.job].get("model"))
    for entry in run.entries:
        known = weights.get(_scoring(entry, run).training)
        own = about[entry.job].get("model")
        if known is not None and own is not None and not known & {own, None}:
            return entry
    return None


def _group(entry: TableEntry, run: RunPlan) -> Hashable:
    return entry.experiment, entry.sources, _scoring(entry, run).seed


def _stream(entry: TableEntry, run: RunPlan) -> Hashable:
    job = _scoring(entry, run)
    return *_group(entry, run), job.targets, job.stream, job.batch  # type: ignore[misc]


def _images(entry: TableEntry, run: RunPlan) -> Hashable:
    """What decides which images a scoring answers, and in which order."""
    job = _scoring(entry, run)
    return tuple(sorted(job.sites.items())), job.limit, job.cases, job.shuffle, job.order


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
