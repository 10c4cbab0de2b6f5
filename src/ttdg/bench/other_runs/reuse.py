"""Reuse of records: scorings that another run has made are not made again."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job, Scoring, to_dict
from ttdg.bench.record_check import record_fault
from ttdg.bench.results import PACKED_FILE, import_polars, read_table
from ttdg.bench.run_file import read_run
from ttdg.evaluation.records import COLUMNS, write_rows
from ttdg.files import atomic_file


def reuse_records(other: Path, jobs: Mapping[str, Job], folder: RunFolder) -> int:
    """Write the records of planned scorings that `other` holds into the run's folder; return their number.

    The key of a scoring contains everything its result depends on: data, training, encoder weights, options and
    stream. Records that the folder already has are kept, and damaged ones of `other` are not taken.

    Args:
        other: Packed records, or the folder of a run.
        jobs: The plan.
        folder: The folder of this run.
    """
    missing = {key: job for key, job in jobs.items() if isinstance(job, Scoring) and not folder.done(job)}
    take = _unpack if (other / PACKED_FILE).is_file() else _copy
    return take(other, missing, folder)


def _copy(run: Path, missing: Mapping[str, Scoring], folder: RunFolder) -> int:
    """Copy the record files of a run."""
    read_run(run)  # a folder without a run raises a UserError
    found = {folder.record(key): run / "records" / folder.record(key).name for key in missing}
    whole = {to: path for to, path in found.items() if path.is_file() and not record_fault(path)}
    for to, path in whole.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(to) as temporary:
            shutil.copyfile(path, temporary)
    return len(whole)


def _unpack(packed: Path, missing: Mapping[str, Scoring], folder: RunFolder) -> int:
    """Write the rows of packed records as record files."""
    table, pl = read_table(packed), import_polars()
    found = {key: job for key, job in missing.items() if key in table.about}
    rows = table.rows.with_columns(pl.exclude("value").cast(pl.String)).filter(
        pl.col("job").is_in(list(found))
    )
    for (key,), part in rows.group_by("job", maintain_order=True):
        about = {**table.about[str(key)], "job": to_dict(found[str(key)])}
        write_rows(folder.record(str(key)), about, part.select(COLUMNS).iter_rows())
    return len(found)
