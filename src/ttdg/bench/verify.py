"""Run sampled rows again and say whether they agree: bit for bit on a CPU, within a stated tolerance on a GPU."""

import hashlib
import json
import math
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ttdg.bench.execute import execute_job, score_job
from ttdg.bench.folder import RunFolder, benchmark_folder
from ttdg.bench.jobs import Fitting, Scoring, Training, required_jobs
from ttdg.bench.results import UNPUBLISHED, RunTable, polars, read_table
from ttdg.checkpoints import versions
from ttdg.errors import UserError
from ttdg.evaluation.records import COLUMNS, PERCENT
from ttdg.evaluation.tuned_options import searches
from ttdg.files import write_text

TOLERANCE = 0.02  # of an image's score between 0 and 1, where arithmetic may differ: a GPU, other versions
FILE = "verification.json"


@dataclass(frozen=True)
class Verification:
    rows: int
    jobs: int
    equal: int  # rows that agree in every bit
    largest: float  # difference
    exact: bool  # whether bits were owed: same device (a CPU), same versions, same threads
    tolerance: float
    digest: str  # of the records that were checked
    versions: Mapping[str, str]
    retrained: int = 0  # models that were not at hand and were trained again
    other_code: bool = False  # the package's source has changed since the records were made

    @property
    def agrees(self) -> bool:
        return self.equal == self.rows if self.exact else self.largest <= self.tolerance

    def in_words(self) -> str:
        since = "; the code has changed since these records were made" if self.other_code else ""
        return self._verdict() + since

    def _verdict(self) -> str:
        if self.exact and self.agrees:
            return f"verified: {self.rows} rows of {self.jobs} scorings agree bit for bit"
        if self.agrees:
            how = f"{self.equal} of {self.rows} rows of {self.jobs} scorings agree bit for bit, all within"
            return f"verified: {how} {self.tolerance:g} (largest difference {self.largest:.2g})"
        owed = "bit for bit" if self.exact else f"within {self.tolerance:g}"
        count = f"{self.equal} of {self.rows} rows are equal"
        return f"NOT verified: {count}; not all agree {owed} (largest difference {self.largest:.2g})"


def verify(
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
    """Rerun the scorings that hold `rows` rows drawn by `seed`, and write what came of it beside the records."""
    table = read_table(folder)
    root = _data(table, data)
    drawn = _draw(table, rows, seed)
    _chosen(table, folder)
    differences: list[float] = []
    exact, retrained, other = True, 0, False
    with tempfile.TemporaryDirectory() as scratch:
        kept = models or (Path(table.run.models) if table.run.models else Path(scratch) / "models")
        for key, names in drawn.items():
            job, about = table.run.jobs[key], table.about[key]
            assert isinstance(job, Scoring)
            progress(f"{job.method} at {', '.join(target.name for target in job.targets)}")
            place = RunFolder(folder.resolve(), root, kept, device, about["threads"], encoder_weights)
            torch.set_num_threads(place.threads)
            job = _as_run(job, about)
            retrained += _source(table, job, place)
            now, again = score_job(job, place)
            exact &= now["device"] == about["device"] == "cpu" and now["versions"] == about["versions"]
            other |= now["code"] != about.get("code")
            found: dict[tuple[str, ...], float] = {tuple(row[:5]): row[5] for row in again}
            differences += [_apart(np.float32(found.get(name, np.inf)), old) for name, old in names.items()]
    equal = differences.count(0.0)
    result = Verification(len(differences), len(drawn), equal, max(differences, default=0.0), exact and not retrained,
                          tolerance, rows_digest(table), versions(), retrained, other)  # fmt: skip
    write_text(folder / FILE, json.dumps(asdict(result) | {"agrees": result.agrees}, indent=1) + "\n")
    return result


def _data(table: RunTable, named: Path | None) -> Path:
    """As `ttdg bench` finds them: named, where the run found them, or in $TTDG_DATA."""
    root = named or Path(table.run.data or os.environ.get("TTDG_DATA", ""))
    benchmark = next(job.benchmark["name"] for job in table.run.jobs.values() if isinstance(job, Training))
    if not (named or table.run.data or "TTDG_DATA" in os.environ) or not root.is_dir():
        raise UserError("the run's data are not at hand; name the benchmark folder with --data")
    return benchmark_folder(root, benchmark)


def _draw(table: RunTable, count: int, seed: int) -> dict[str, dict[tuple[str, ...], np.float32]]:
    """job → row → value, of rows drawn at random among the scores between 0 and 1."""
    pl = polars()
    rows = table.rows.filter(pl.col("metric").cast(pl.String).is_in(PERCENT))
    picked = sorted(random.Random(seed).sample(range(len(rows)), min(count, len(rows))))
    drawn: dict[str, dict[tuple[str, ...], np.float32]] = {}
    for job, *row in rows[picked].select("job", *COLUMNS).iter_rows():
        value = np.float32("nan") if row[5] is None else np.float32(row[5])
        drawn.setdefault(str(job), {})[tuple(str(part) for part in row[:5])] = value
    return drawn


def _apart(new: np.float32, old: np.float32) -> float:
    """0 where every bit agrees; a row that is gone, or has a value where it had none, is infinitely far."""
    if new == old or (np.isnan(new) and np.isnan(old)):
        return 0.0
    return float("inf") if np.isnan(new) or np.isnan(old) else abs(float(new) - float(old))


def _chosen(table: RunTable, folder: Path) -> None:
    """A search is not run again, but it must have chosen its best trial, and that must be what the records ran with."""
    found = searches(folder)
    for key, search in found.items():
        scores = {json.dumps(trial["options"], sort_keys=True): trial["dice"] for trial in search["trials"]}
        mine = scores.get(json.dumps(search["chosen"], sort_keys=True), math.inf)
        if any(score > mine for score in scores.values()) or (
            search["dice"] != mine and not math.isnan(mine)
        ):
            raise UserError(f"search {key} in {folder} did not choose its best trial: it was changed")
    for key, about in table.about.items():
        job = table.run.jobs[key]
        if isinstance(job, Scoring) and job.tuning in found:
            options = {**job.options, **found[job.tuning]["chosen"]}
            if options != about["options"]:
                raise UserError(
                    f"search {job.tuning} in {folder} chose {options} for {job.method}, but record {key} ran with "
                    f"{about['options']}: one of them was changed"
                )


def _as_run(job: Scoring, about: Mapping[str, Any]) -> Scoring:
    """With the options its record says it ran with: a search is not repeated for the sake of a row."""
    return replace(job, options=about["options"], tuning=None) if job.tuning else job


def _source(table: RunTable, job: Scoring, place: RunFolder) -> int:
    """Train and fit what is not at hand; how many models that were."""
    count = 0
    for key in required_jobs(job):
        before = table.run.jobs[key]
        if isinstance(before, (Training, Fitting)) and not place.done(before):
            execute_job(before, place)
            count += 1
    return count


def rows_digest(table: RunTable) -> str:
    """A hash of all published rows, in any order: a verification is of these records and no others."""
    pl = polars()
    rows = table.rows.with_columns(pl.col("job", *COLUMNS[:5]).cast(pl.String))
    kept = rows.filter(~pl.col("metric").is_in(UNPUBLISHED)).drop_nulls("value").sort("job", *COLUMNS[:5])
    return hashlib.sha256(kept.write_csv().encode()).hexdigest()


def verification_state(folder: Path, table: RunTable) -> str:
    """What is known of these records, in words."""
    try:
        fields = json.loads((folder / FILE).read_text(encoding="utf-8"))
        agrees = fields.pop("agrees")
        found = Verification(**fields)
    except (OSError, ValueError, KeyError, TypeError):
        return "not verified"
    if found.digest != rows_digest(table):
        return "not verified: the records have changed since"
    return found.in_words() if agrees == found.agrees else "not verified"
