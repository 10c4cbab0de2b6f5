"""Benchmark runs: a yaml file is expanded into jobs, an executor runs them, and each scoring writes a record.

Importing this package loads neither torch nor polars, because the process that schedules jobs needs neither.

- `run_benchmark`, `run_jobs`: plan and run a benchmark, or run jobs that are planned. They return a `RunOutcome`.
- `RunRequest`, `PreparedRun`: what the user asked for, and the plan made from it. `Piece`: seeds, rows and targets.
- `RunPlan`, `TableEntry`, `read_run`, `write_run`: the file `run.json` with all jobs and the tables they belong to.
- `RunFolder`: paths of the models, parts, tuned options, records and logs of a run.
- `Job`: one of `Training`, `Fitting`, `Tuning` and `Scoring`. `key_of` returns the key of a job.
"""

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Fitting, Job, Scoring, Training, Tuning, key_of
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.run import RunOutcome, run_benchmark, run_jobs
from ttdg.bench.run_file import RunPlan, TableEntry, read_run, write_run
from ttdg.bench.selection import Piece

__all__ = [
    "Fitting",
    "Job",
    "Piece",
    "PreparedRun",
    "RunFolder",
    "RunOutcome",
    "RunPlan",
    "RunRequest",
    "Scoring",
    "TableEntry",
    "Training",
    "Tuning",
    "key_of",
    "read_run",
    "run_benchmark",
    "run_jobs",
    "write_run",
]
