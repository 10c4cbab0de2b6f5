"""Reuse of packed records: scorings that a published run has made are not made again."""

from collections.abc import Mapping
from pathlib import Path

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job, Scoring, to_dict
from ttdg.bench.results import import_polars, read_table
from ttdg.evaluation.records import COLUMNS, write_rows


def reuse_records(packed: Path, jobs: Mapping[str, Job], folder: RunFolder) -> int:
    """Write the records of planned scorings that `packed` holds into the run's folder; return their number.

    The key of a scoring contains everything its result depends on: data, training, encoder weights, options and
    stream. Records that the folder already has are kept.
    """
    table, pl = read_table(packed), import_polars()
    missing = {
        key: job
        for key, job in jobs.items()
        if isinstance(job, Scoring) and key in table.about and not folder.done(job)
    }
    rows = table.rows.with_columns(pl.exclude("value").cast(pl.String)).filter(
        pl.col("job").is_in(list(missing))
    )
    for (key,), part in rows.group_by("job", maintain_order=True):
        about = {**table.about[str(key)], "job": to_dict(missing[str(key)])}
        write_rows(folder.record(str(key)), about, part.select(COLUMNS).iter_rows())
    return len(missing)
