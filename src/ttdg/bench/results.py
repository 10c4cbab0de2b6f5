"""All records of a run as one polars table.

Columns: experiment, protocol, method, sources, stream, batch, seed, target, site, case, region, metric, value.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttdg.bench.jobs import Scoring, with_required
from ttdg.bench.record_check import REMEDY, count_fault
from ttdg.bench.run_file import RunPlan, read_run, write_run
from ttdg.errors import UserError, suggestion
from ttdg.evaluation.records import COLUMNS, PRIMARY, SUFFIX, check_size, read_about
from ttdg.files import atomic_file, write_text

if TYPE_CHECKING:
    import polars as pl

SETTING_COLUMNS = ("experiment", "protocol", "method", "sources", "stream", "batch", "seed")
PACKED_FILE = "records.csv.gz"
ABOUT_FILE = "about.json"
PACKED_INDEX = ["job", "target", "region", "site", "case"]  # columns that identify a line of a packed run
LARGEST_PACKED = 1 << 30  # bytes of decompressed packed records
DIVISORS = ("images", "batches")
COSTS = (*DIVISORS, "adapting_seconds", "peak_bytes", "forwards", "backwards")  # of the metadata of a scoring
UNPUBLISHED_METRICS = ("seconds", "alignment")  # not written into packed runs


@dataclass(frozen=True)
class RunTable:
    """A run's plan, its rows, and the metadata of each scoring.

    `whole` is set for a part of a run: tables of the part may refer to experiments that it leaves out. `folder` is the
    run's, which also holds its searches.
    """

    run: RunPlan
    rows: "pl.DataFrame"  # columns: job and COLUMNS
    about: Mapping[str, Mapping[str, Any]]  # job → metadata line of its record
    whole: "RunTable | None" = None
    folder: Path | None = None

    def settings(self) -> "pl.DataFrame":
        """Return one line per table entry that has a record: the SETTING_COLUMNS, the source model and the job."""
        import polars as pl

        lines = []
        for entry in self.run.entries:
            job = self.run.jobs[entry.job]
            if entry.job in self.about and isinstance(job, Scoring):
                lines.append((entry.experiment, entry.protocol, entry.label, entry.sources, job.stream, job.batch,
                              job.seed, job.training, entry.job))  # fmt: skip
        kinds = {name: pl.Int64 if name in ("batch", "seed") else pl.String for name in SETTING_COLUMNS}
        return pl.DataFrame(lines, {**kinds, "training": pl.String, "job": pl.String}, orient="row")


def import_polars() -> Any:
    """Return the polars module; a missing package raises a UserError."""
    try:
        import polars
    except ImportError:
        raise UserError("tables need the package polars; install it with `pip install polars`") from None
    return polars


def has_records(folder: Path) -> bool:
    """True if a run has at least one record; false while it still trains its models."""
    return (folder / PACKED_FILE).is_file() or any((folder / "records").glob(f"*{SUFFIX}"))


def read_table(folder: Path) -> RunTable:
    """Read a run's folder or a packed run; a damaged or incomplete record raises a UserError that names it."""
    run = read_run(folder)
    if (folder / PACKED_FILE).is_file():
        return _read_packed(folder, run)
    available = sorted((folder / "records").glob(f"*{SUFFIX}")) if (folder / "records").is_dir() else []
    planned = {entry.job for entry in run.entries}
    paths = [path for path in available if path.name.removesuffix(SUFFIX) in planned]
    if not paths:
        raise UserError(f"{folder} has no records yet; run its benchmark first")
    about = {path.name.removesuffix(SUFFIX): read_about(path) for path in paths}
    table = RunTable(run, read_record_files(paths), about, folder=folder)
    _check_complete(table, folder / "records", REMEDY)
    return table


def read_record_files(paths: Sequence[Path]) -> "pl.DataFrame":
    """Read the rows of many records; the column `job` holds the key of each row's job."""
    pl = import_polars()
    try:
        frame = _rows(paths, COLUMNS, skip_lines=1, include_file_paths="job")
    except (OSError, pl.exceptions.PolarsError):
        for path in paths:
            _check_readable(path)
        raise
    length = len(paths[0].name) - len(SUFFIX)  # all keys have the same length
    key = pl.col("job").str.slice(-length - len(SUFFIX), length).cast(pl.Categorical)
    return frame.with_columns(key).select("job", *COLUMNS)


def _rows(source: Path | Sequence[Path], columns: Sequence[str], **how: Any) -> "pl.DataFrame":
    pl = import_polars()
    kinds = {name: pl.Float32 if name == "value" else pl.Categorical for name in columns}
    frame = pl.read_csv(source, schema=kinds, **how)
    return frame.with_columns(pl.col("site", "case", "region").fill_null(""))


def _check_readable(path: Path) -> None:
    pl = import_polars()
    try:
        _rows(path, COLUMNS, skip_lines=1)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{path} is damaged ({error.__class__.__name__}); {REMEDY}") from None


def _check_complete(table: RunTable, where: Path, remedy: str) -> None:
    """Raise a UserError if a record holds fewer Dice or accuracy values than its metadata declares."""
    pl = import_polars()
    dice = table.rows.filter(pl.col("metric").cast(pl.String).is_in(PRIMARY)).group_by("job")
    counts = dice.agg(pl.len(), pl.col("region").n_unique().alias("regions"))
    by_job = {job: (scores, regions) for job, scores, regions in counts.iter_rows()}
    for job, about in table.about.items():
        if not all(_is_count(about, name) for name in COSTS):
            raise UserError(f"{where}: {job}{SUFFIX} does not declare its time, memory and passes; {remedy}")
        if fault := count_fault(f"{job}{SUFFIX}", about, *by_job.get(job, (0, 0))):
            raise UserError(f"{where}: {fault}; {remedy}")


def _is_count(about: Any, name: str) -> bool:
    value = about.get(name) if isinstance(about, Mapping) else None
    return (
        isinstance(value, int | float) and 0 <= value < float("inf") and (value > 0 or name not in DIVISORS)
    )


def select_experiments(table: RunTable, experiments: Sequence[str]) -> RunTable:
    """Return the run with these experiments only; `whole` of the result is the run itself."""
    pl = import_polars()
    known = dict.fromkeys(entry.experiment for entry in table.run.entries)
    for name in experiments:
        if name not in known:
            raise UserError(f"the run has no experiment {name!r}{suggestion(name, known)}")
    entries = tuple(entry for entry in table.run.entries if entry.experiment in experiments)
    jobs = with_required(table.run.jobs, (entry.job for entry in entries))
    about = {key: line for key, line in table.about.items() if key in jobs}
    rows = table.rows.filter(pl.col("job").cast(pl.String).is_in(list(about)))
    part = replace(table.run, jobs=jobs, entries=entries)
    return RunTable(part, rows, about, table.whole or table, table.folder)


def pack_run(table: RunTable, folder: Path) -> list[Path]:
    """Write the run as three small files that can be published: plan, metadata of the scorings, rows.

    The plan names the scorings that were made, and the jobs that they needed. Packed rows have one column per metric,
    which makes the file smaller. Two metrics are left out: the time of each image, whose sum is in the metadata, and
    E_φ at one threshold, which no table shows.
    """
    if (folder / "records").is_dir():  # packed records beside them would hide all later ones
        raise UserError(f"{folder} is the folder of a run; pack its records into another folder")
    pl = import_polars()
    about = {
        key: {name: value for name, value in line.items() if name != "job"}
        for key, line in table.about.items()
    }
    rows = table.rows.filter(~pl.col("metric").cast(pl.String).is_in(UNPUBLISHED_METRICS))
    wide = rows.pivot("metric", index=PACKED_INDEX, values="value", maintain_order=True)
    wide = wide.sort("job", "target", "region", maintain_order=True)  # compresses better
    entries = tuple(entry for entry in table.run.entries if entry.job in about)
    jobs = with_required(table.run.jobs, about)
    # The metadata come last: rows and jobs that they do not name are ignored, so a folder that is packed again is
    # readable whenever this is interrupted.
    write_run(folder, replace(table.run, jobs=jobs, entries=entries, data="", models=""))
    with atomic_file(folder / PACKED_FILE) as temporary, temporary.open("wb") as file:
        file.write(gzip.compress(wide.write_csv().encode(), 9, mtime=0))
    write_text(folder / ABOUT_FILE, json.dumps(about, sort_keys=True) + "\n")
    return [folder / "run.json", folder / ABOUT_FILE, folder / PACKED_FILE]


def _read_packed(folder: Path, run: RunPlan) -> RunTable:
    try:
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        if unknown := about.keys() - run.jobs.keys():
            raise ValueError(f"no job {min(unknown)}")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{folder / ABOUT_FILE} cannot be read ({error.__class__.__name__}); pack the run again"
        ) from None
    pl = import_polars()
    try:
        check_size(folder / PACKED_FILE, LARGEST_PACKED)
        wide = pl.read_csv(folder / PACKED_FILE, infer_schema=False)
        rows = wide.unpivot(index=PACKED_INDEX, variable_name="metric").drop_nulls("value")
        kinds = {name: pl.Float32 if name == "value" else pl.Categorical for name in ("job", *COLUMNS)}
        rows = rows.with_columns(pl.col("site", "case", "region").fill_null("")).cast(kinds)
        table = RunTable(run, rows.select("job", *COLUMNS), about, folder=folder)
    except (OSError, EOFError, ValueError, zlib.error, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{folder / PACKED_FILE} cannot be read ({error.__class__.__name__}); copy it again"
        ) from None
    _check_complete(table, folder / PACKED_FILE, "copy the packed records again")
    return table
