"""All records of a run as one table, read and reduced by polars rather than by Python loops.

Columns: experiment, protocol, method, sources, stream, batch, seed, target, site, case, region, metric, value.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttdg.bench.jobs import Scoring, with_required
from ttdg.bench.run_file import RunPlan, read_run, write_run
from ttdg.errors import UserError, suggestion
from ttdg.evaluation.records import COLUMNS, SUFFIX, read_about
from ttdg.files import atomic_file, write_text

if TYPE_CHECKING:
    import polars as pl

SETTING = ("experiment", "protocol", "method", "sources", "stream", "batch", "seed")
PACKED = "records.csv.gz"
ABOUT = "about.json"
WIDE = ["job", "target", "region", "site", "case"]  # what names a line of a packed run
UNPUBLISHED = ("seconds", "alignment")  # metrics


@dataclass(frozen=True)
class RunTable:
    """A run, its rows, and what each scoring says of itself."""

    run: RunPlan
    rows: "pl.DataFrame"  # job and COLUMNS
    about: Mapping[str, Mapping[str, Any]]  # job → its line

    def settings(self) -> "pl.DataFrame":
        """One line per entry of the plan that has records."""
        import polars as pl

        lines = []
        for entry in self.run.entries:
            job = self.run.jobs[entry.job]
            if entry.job in self.about and isinstance(job, Scoring):
                lines.append((entry.experiment, entry.protocol, entry.label, entry.sources, job.stream, job.batch,
                              job.seed, entry.job))  # fmt: skip
        kinds = {name: pl.Int64 if name in ("batch", "seed") else pl.String for name in SETTING}
        return pl.DataFrame(lines, {**kinds, "job": pl.String}, orient="row")


def polars() -> Any:
    """The package, or a sentence that says how to get it."""
    try:
        import polars
    except ImportError:
        raise UserError("tables need the package polars: pip install polars") from None
    return polars


def read_table(folder: Path) -> RunTable:
    """A run's folder, or what `ttdg report --pack` made of one."""
    run = read_run(folder)
    if (folder / PACKED).is_file():
        return _read_packed(folder, run)
    found = sorted((folder / "records").glob(f"*{SUFFIX}")) if (folder / "records").is_dir() else []
    wanted = {entry.job for entry in run.entries}
    paths = [path for path in found if path.name.removesuffix(SUFFIX) in wanted]
    if not paths:
        raise UserError(f"{folder} has no records yet: give its `ttdg bench` command again")
    about = {path.name.removesuffix(SUFFIX): read_about(path) for path in paths}
    return RunTable(run, read_files(paths), about)


def read_files(paths: Sequence[Path]) -> "pl.DataFrame":
    """The rows of many records at once, with the job each came from."""
    pl = polars()
    try:
        frame = _rows(paths, COLUMNS, skip_lines=1, include_file_paths="job")
    except (OSError, pl.exceptions.PolarsError):
        for path in paths:
            _check(path)
        raise
    length = len(paths[0].name) - len(SUFFIX)  # every key is as long
    key = pl.col("job").str.slice(-length - len(SUFFIX), length).cast(pl.Categorical)
    return frame.with_columns(key).select("job", *COLUMNS)


def _rows(source: Path | Sequence[Path], columns: Sequence[str], **how: Any) -> "pl.DataFrame":
    pl = polars()
    kinds = {name: pl.Float32 if name == "value" else pl.Categorical for name in columns}
    frame = pl.read_csv(source, schema=kinds, **how)
    return frame.with_columns(pl.col("site", "case", "region").fill_null(""))


def _check(path: Path) -> None:
    pl = polars()
    try:
        _rows(path, COLUMNS, skip_lines=1)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{path} cannot be read as records ({error.__class__.__name__}); remove it and give the same "
            "`ttdg bench` command again: only what it held is made anew"
        ) from None


def only(table: RunTable, experiments: Sequence[str]) -> RunTable:
    """The run as if it had these experiments alone."""
    pl = polars()
    known = dict.fromkeys(entry.experiment for entry in table.run.entries)
    for name in experiments:
        if name not in known:
            raise UserError(f"the run has no experiment {name!r}{suggestion(name, known)}")
    entries = tuple(entry for entry in table.run.entries if entry.experiment in experiments)
    jobs = with_required(table.run.jobs, (entry.job for entry in entries))
    about = {key: line for key, line in table.about.items() if key in jobs}
    rows = table.rows.filter(pl.col("job").cast(pl.String).is_in(list(about)))
    return RunTable(replace(table.run, jobs=jobs, entries=entries), rows, about)


def pack_run(table: RunTable, folder: Path) -> list[Path]:
    """The run in three small files that can be published: plan, what each scoring says of itself, rows.

    Rows there are wide, a column a metric, which makes the file smaller. Left out: each image's time, whose sum
    stays, and E_φ at one threshold, which no table shows.
    """
    pl = polars()
    about = {
        key: {name: value for name, value in line.items() if name != "job"}
        for key, line in table.about.items()
    }
    rows = table.rows.filter(~pl.col("metric").cast(pl.String).is_in(UNPUBLISHED))
    wide = rows.pivot("metric", index=WIDE, values="value", maintain_order=True)
    wide = wide.sort("job", "target", "region", maintain_order=True)  # like beside like: smaller
    write_run(folder, replace(table.run, data="", models=""))
    write_text(folder / ABOUT, json.dumps(about, sort_keys=True) + "\n")
    with atomic_file(folder / PACKED) as temporary, temporary.open("wb") as file:
        file.write(gzip.compress(wide.write_csv().encode(), 9, mtime=0))
    return [folder / "run.json", folder / ABOUT, folder / PACKED]


def _read_packed(folder: Path, run: RunPlan) -> RunTable:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / ABOUT} cannot be read ({error.__class__.__name__}); pack the run again"
        ) from None
    pl = polars()
    try:
        wide = pl.read_csv(folder / PACKED, infer_schema=False)
        rows = wide.unpivot(index=WIDE, variable_name="metric").drop_nulls("value")
        kinds = {name: pl.Float32 if name == "value" else pl.Categorical for name in ("job", *COLUMNS)}
        rows = rows.with_columns(pl.col("site", "case", "region").fill_null("")).cast(kinds)
        return RunTable(run, rows.select("job", *COLUMNS), about)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{folder / PACKED} cannot be read ({error.__class__.__name__}); copy it again"
        ) from None
