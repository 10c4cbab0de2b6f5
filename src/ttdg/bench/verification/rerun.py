"""Verification: run the scorings of sampled rows again and compare the values.

Values must be bit-identical on a CPU with the same versions; otherwise they must agree within a tolerance.
"""

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttdg.bench.execute import execute_job, score_job
from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Fitting, Scoring, Training, job_title, key_of, required_jobs
from ttdg.bench.results import PACKED_FILE, RunTable, import_polars, read_table
from ttdg.bench.verification.outcome import (
    Verification,
    VerifiedRecord,
    record_digests,
    rows_digest,
    verified_records,
    write_verification,
)
from ttdg.checkpoints import versions
from ttdg.data import find_sites
from ttdg.data.fingerprints import fingerprint
from ttdg.data.lookup import find_benchmark_folder
from ttdg.errors import UserError
from ttdg.evaluation.records import COLUMNS, PERCENT
from ttdg.evaluation.tuned_options import chose_best, searches

TOLERANCE = 0.02  # of a score in [0, 1], where arithmetic may differ: on a GPU, or with other versions


def verify_run(
    folder: Path,
    rows: int = 20,
    seed: int = 0,
    *,
    data: Path | None = None,
    models: Path | None = None,
    encoder_weights: str | None = None,
    device: str = "cpu",
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] = lambda line: None,
) -> Verification:
    """Sample rows of as many methods as possible, run their scorings again, and write the result beside the records.

    Every record that ran again is marked. Marks of earlier verifications stay while their records do not change.

    Args:
        folder: Folder of a run or of packed records.
        rows: Number of rows to sample.
        seed: Seed of the sample.
        data: Benchmark folder; by default the one of the run, or the default data folder.
        models: Folder of source models; by default `models` in the run's folder. Missing models are trained.
        encoder_weights: ImageNet weights for models that must be trained.
        device: PyTorch device.
        tolerance: Accepted difference of a score in [0, 1] where bit-identical values are not required.
        progress: Called with a line of text for each scoring.
    """
    table = read_table(folder)
    root = _data_folder(table, data)
    sample = _sample_rows(table, rows, seed)
    _check_keys(table, sample, folder)
    _check_searches(table, folder)
    _check_data(table, sample, root)
    differences: list[float] = []
    exact, retrained, other_code = True, 0, False
    marks, digests = verified_records(folder, table), record_digests(table, sample)
    with tempfile.TemporaryDirectory() as scratch:
        kept = models or _models_folder(table, folder) or Path(scratch) / "models"
        # beside packed records no fitted part is left
        parts = Path(scratch) if (folder / PACKED_FILE).is_file() else folder.resolve()
        for key, values in sample.items():
            job, about = table.run.jobs[key], table.about[key]
            assert isinstance(job, Scoring)
            progress(job_title(job))
            run = RunFolder(parts, root, kept, device, about.get("threads", 1), encoder_weights)
            torch.set_num_threads(run.threads)
            job = _with_recorded_options(job, about)
            retrained += _make_missing(table, job, run)
            now, again = score_job(job, run)
            same_versions = now["versions"] == about.get("versions")
            own_exact = now["device"] == about.get("device") == "cpu" and same_versions and not retrained
            exact &= own_exact
            other_code |= now["code"] != about.get("code")
            new: dict[tuple[str, ...], float] = {tuple(row[:5]): row[5] for row in again}
            own = [_difference(np.float32(new.get(row, np.inf)), old) for row, old in values.items()]
            agrees = max(own) <= (0.0 if own_exact else tolerance)
            marks[key] = VerifiedRecord(digests[key], len(own), max(own), agrees)
            differences += own
    equal = differences.count(0.0)
    result = Verification(
        len(differences), len(sample), equal, max(differences, default=0.0), exact, tolerance,
        rows_digest(table), versions(), retrained, other_code, marks,
    )  # fmt: skip
    write_verification(folder, result)
    return result


def _data_folder(table: RunTable, named: Path | None) -> Path:
    training = next((job for job in table.run.jobs.values() if isinstance(job, Training)), None)
    recorded = Path(table.run.data) if table.run.data else None
    return find_benchmark_folder(named or recorded, training.benchmark["name"] if training else None)


def _models_folder(table: RunTable, folder: Path) -> Path | None:
    """Return the folder of the run's models, which must be inside the run's folder; None if the run has none.

    Missing models are trained into this folder, so a path elsewhere is used only if the caller names it.
    """
    inside = folder.resolve() / "models"
    if inside.is_dir():
        return inside
    if not table.run.models:
        return None
    recorded = Path(table.run.models).resolve()
    if not recorded.is_relative_to(folder.resolve()):
        raise UserError(
            f"run.json in {folder} names the models folder {recorded}, which is outside the run's folder; name the "
            "models folder explicitly to use it, and to train missing models into it"
        )
    return recorded


def _sample_rows(table: RunTable, count: int, seed: int) -> dict[str, dict[tuple[str, ...], np.float32]]:
    """Return job → row → value of rows sampled among the scores in [0, 1].

    The first rows are of different methods, one row each; the others are drawn from all rows.
    """
    pl = import_polars()
    rows = table.rows.filter(pl.col("metric").cast(pl.String).is_in(PERCENT))
    generator, by_method = random.Random(seed), dict[str, list[str]]()
    for key in sorted(rows["job"].cast(pl.String).unique()):
        by_method.setdefault(table.run.jobs[key].method, []).append(key)  # type: ignore[union-attr]
    chosen: dict[int, None] = {}
    for method in generator.sample(sorted(by_method), min(count, len(by_method))):
        own = (rows["job"].cast(pl.String) == generator.choice(by_method[method])).arg_true()
        chosen[own[generator.randrange(len(own))]] = None
    chosen |= dict.fromkeys(generator.sample(range(len(rows)), min(count, len(rows))))
    picked = sorted(list(chosen)[:count])
    sample: dict[str, dict[tuple[str, ...], np.float32]] = {}
    for job, *row in rows[picked].select("job", *COLUMNS).iter_rows():
        value = np.float32("nan") if row[5] is None else np.float32(row[5])
        sample.setdefault(str(job), {})[tuple(str(part) for part in row[:5])] = value
    return sample


def _difference(new: np.float32, old: np.float32) -> float:
    """Return 0 if both values are identical or NaN; infinity if one is NaN or the row is missing."""
    if new == old or (np.isnan(new) and np.isnan(old)):
        return 0.0
    return float("inf") if np.isnan(new) or np.isnan(old) else abs(float(new) - float(old))


def _check_keys(table: RunTable, keys: Mapping[str, object], folder: Path) -> None:
    """Raise a UserError if a job of the sample, or a job it requires, does not match its key."""
    for key in keys:
        for name in (key, *required_jobs(table.run.jobs[key])):
            if name not in table.run.jobs or key_of(table.run.jobs[name]) != name:
                raise UserError(f"job {name} of {folder} does not match its key: run.json was changed")


def _check_data(table: RunTable, keys: Iterable[str], root: Path) -> None:
    """Raise a UserError if the images or masks of the sample, or of its models, are not those of the records."""
    expected: dict[str, str] = {}
    for key in keys:
        job = table.run.jobs[key]
        assert isinstance(job, Scoring)
        training = table.run.jobs[job.training]
        assert isinstance(training, Training)
        expected |= {**job.sites, **training.sources}
    sites = find_sites(root, sorted(expected))
    changed = [name for name, site in sites.items() if fingerprint(site.cases) != expected[name]]
    if changed:
        raise UserError(
            f"the images or masks of {', '.join(changed)} in {root} are not those of the records; name the data folder "
            "with which they were made"
        )


def _check_searches(table: RunTable, folder: Path) -> None:
    """Raise a UserError if a search did not choose its best trial, or a record used other options.

    Searches are not run again.
    """
    by_key = searches(folder)
    for key, search in by_key.items():
        if not chose_best(search):
            raise UserError(f"search {key} in {folder} did not choose its best trial: it was changed")
    for key, about in table.about.items():
        job = table.run.jobs[key]
        if isinstance(job, Scoring) and job.tuning in by_key:
            options = {**job.options, **by_key[job.tuning]["chosen"]}
            if options != about["options"]:
                raise UserError(
                    f"search {job.tuning} in {folder} chose {options} for {job.method}, but record {key} ran with "
                    f"{about['options']}: one of them was changed"
                )


def _with_recorded_options(job: Scoring, about: Mapping[str, Any]) -> Scoring:
    """Return a tuned job with the options of its record, so that the search is not repeated."""
    return replace(job, options=about["options"], tuning=None) if job.tuning else job


def _make_missing(table: RunTable, job: Scoring, folder: RunFolder) -> int:
    """Train and fit what the job requires and the folder lacks; return the number of jobs run."""
    count = 0
    for key in required_jobs(job):
        required = table.run.jobs[key]
        if isinstance(required, (Training, Fitting)) and not folder.done(required):
            execute_job(required, folder)
            count += 1
    return count
