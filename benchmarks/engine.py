"""Cost of the benchmark engine: time to read and tabulate many records, and overhead of running jobs.

    python benchmarks/engine.py rows --rows 10000000
    python benchmarks/engine.py overhead --config experiments/smoke.yaml

`rows` writes records with random values, then reads and tabulates them in a separate process.
`overhead` runs a config with one worker and compares the wall time of the run with the time inside its jobs.
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

METRICS = ("dice", "alignment", "structure", "hd95")
IMAGES = 1000  # per scoring
REGIONS = ("disc", "cup")


def made_up(folder: Path, rows: int) -> int:
    """Write a run with random values and at least `rows` rows: 10 methods, 5 targets, as many seeds as needed."""
    from ttdg.bench.jobs import Scoring, key_of
    from ttdg.bench.protocols import Target
    from ttdg.bench.run_file import RunPlan, TableEntry, write_run
    from ttdg.evaluation.records import COLUMNS

    per_job = IMAGES * (len(REGIONS) * len(METRICS) + 1)
    jobs, entries, rng = {}, [], np.random.default_rng(0)
    (folder / "records").mkdir(parents=True)
    number = 0
    while number * per_job < rows:
        method, target, seed = number % 10, (number // 10) % 5, number // 50
        job = Scoring(
            "training", f"m{method}", {}, {}, (Target(f"s{target}", (f"s{target}",)),), {}, "online", 4, seed
        )
        key = key_of(job)
        jobs[key] = job
        entries.append(TableEntry("made up", "leave-one-out", f"m{method}", "others", key))
        values = iter(rng.random(per_job).astype(np.float32).tolist())
        image = f"s{target},s{target}"
        lines = [",".join(COLUMNS)]
        for case in range(IMAGES):
            lines += [f"{image},c{case:05},{r},{m},{next(values):.7g}" for m in METRICS for r in REGIONS]
            lines.append(f"{image},c{case:05},,seconds,{next(values):.7g}")
        about = {"format": 1, "key": key, "images": IMAGES, "batches": IMAGES // 4, "forwards": 1, "backwards": 0,
                 "adapting_seconds": 1.0, "all_seconds": 1.0, "peak_bytes": 1, "threads": 1}  # fmt: skip
        text = f"#{json.dumps(about)}\n" + "\n".join(lines) + "\n"
        (folder / "records" / f"{key}.csv.gz").write_bytes(gzip.compress(text.encode(), 6, mtime=0))
        number += 1
    write_run(folder, replace(RunPlan("made up", "m0", 5.0, {}, {}, ()), jobs=jobs, entries=tuple(entries)))
    return number * per_job


TABULATE = """
import sys, time, resource
from pathlib import Path
start = time.perf_counter()
from ttdg.bench.results import read_table
from ttdg.report.comparison import report_tables
table = read_table(Path(sys.argv[1]))
read = time.perf_counter()
tables = report_tables(table)
end = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{len(table.rows)} rows: read {read - start:.1f} s, {len(tables)} tables {end - read:.1f} s, "
      f"all {end - start:.1f} s, peak {peak:.0f} MB")
"""


def rows(count: int) -> None:
    """Measure writing, reading and tabulating `count` rows."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        written = made_up(Path(folder) / "run", count)
        print(f"wrote {written} rows in {time.perf_counter() - start:.0f} s", flush=True)
        subprocess.run([sys.executable, "-c", TABULATE, str(Path(folder) / "run")], check=True)


def overhead(config: Path) -> None:
    """Measure the overhead with one worker: jobs run one after another, so the remaining time is the engine's."""
    from ttdg.bench.console import RunningMeans, progress_view
    from ttdg.bench.executors import ExecutorOptions, make_executor
    from ttdg.bench.request import RunRequest
    from ttdg.bench.run import prepare_in_subprocess, run_jobs
    from ttdg.bench.worker import work_in

    with tempfile.TemporaryDirectory() as folder:
        request = RunRequest(config, Path(folder) / "run", device="cpu", workers=1, threads=1)
        prepare_in_subprocess(request)  # draws the synthetic hospitals before the measured call
        begin = time.perf_counter()
        ready = prepare_in_subprocess(request)
        planned = time.perf_counter() - begin
        means, last = RunningMeans(ready.run, ready.folder), []

        def watch(schedule: object) -> None:
            means.update(schedule)  # type: ignore[arg-type]
            progress_view(schedule, means, 1)  # type: ignore[arg-type]
            last[:] = [schedule]

        start = time.perf_counter()
        ended = run_jobs(dict(ready.run.jobs), ready.folder,
                         lambda: make_executor("local", work_in(ready.folder), ExecutorOptions(1)), watch)  # fmt: skip
        wall = time.perf_counter() - start
    inside = sum(sum(values) for values in last[0].seconds.values())  # type: ignore[attr-defined]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    engine, whole = wall - inside, wall + planned
    print(
        f"{ended.done} jobs, {len(ended.failed)} failed: {whole:.1f} s, {inside:.1f} s in jobs, {planned:.1f} s "
        f"planning, {engine:.2f} s starting workers, scheduling, display and end: {100 * engine / whole:.2f} %, with "
        f"planning {100 * (engine + planned) / whole:.2f} %; scheduler's peak memory {peak:.0f} MB"
    )


def main() -> None:
    """Parse the command line and run one measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rows", "overhead"))
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--config", type=Path, default=Path("experiments/smoke.yaml"))
    options = parser.parse_args()
    if options.what == "rows":
        rows(options.rows)
    else:
        overhead(options.config)


if __name__ == "__main__":
    main()
