"""Importing a data set: all its cases, resumable, with a list of what was set aside."""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ttdg.data.benchmark import Benchmark, load_benchmark
from ttdg.data.case_table import Problem
from ttdg.data.downloads.conversion import convert_case, target_paths
from ttdg.data.downloads.description import dataset_description
from ttdg.data.downloads.plan import FoundCase, find_cases
from ttdg.data.threads import ordered_map
from ttdg.errors import UserError
from ttdg.files import atomic_file, write_text

DONE = "import-{}.json"  # record of a data set in the benchmark folder


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        sites: Number of cases of each site.
        written: Cases that this call wrote.
        kept: Cases that an earlier call had written.
        set_aside: Files that did not become cases, each with the reason.
        record: The json file with the same facts.
    """

    sites: Mapping[str, int]
    written: int
    kept: int
    set_aside: tuple[Problem, ...]
    record: Path


def import_dataset(
    name: str,
    source: Path,
    out: Path,
    *,
    rater: str | None = None,
    table: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Turn the download of a data set into a benchmark folder, or into class folders.

    Files are written atomically, and cases that exist are kept: a call that was interrupted is continued by the same
    call. A case that cannot be read is set aside, and the others are imported. Several data sets may share a
    benchmark folder if they have the same labels and different sites.

    Args:
        name: Name of the data set.
        source: The folder with the extracted download. It is not changed.
        out: The benchmark folder.
        rater: Whose masks are taken, if the data set has several raters; None is the first.
        table: A csv file with the column `case` and any of `site`, `patient` and `split`.
        workers: Number of threads; None is one per core.
        progress: Called with the number of finished cases and of all.
    """
    description = dataset_description(name)
    rater = description.chosen_rater(rater)
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{out} is inside the download {source}; name a folder elsewhere")
    found = find_cases(source, description, rater, table)
    settings = {
        "data set": name,
        "rater": rater,
        "description": description.digest,
        "table": None if table is None else hashlib.sha256(table.read_bytes()).hexdigest(),
    }
    sites = sorted({case.site for case in found.cases})
    record = out / DONE.format(name)
    _check_earlier(out, record, settings, sites)
    benchmark = _prepare_benchmark(out, description.benchmark)
    _write_record(record, settings, dict.fromkeys(sites, 0), found.problems)

    def convert(case: FoundCase) -> bool:
        targets = target_paths(case, description, out)
        if all(target.is_file() for target in targets):
            return False
        convert_case(case, description, benchmark, targets)
        return True

    done, problems, written = [], list(found.problems), 0
    for number, (case, future) in enumerate(ordered_map(convert, found.cases, workers), start=1):
        try:
            written += future.result()
            done.append(case)
        except UserError as error:
            problems.append(Problem(case.image, f"is set aside: {error}"))
        if progress is not None:
            progress(number, len(found.cases))
    counts = Counter(case.site for case in done)
    if benchmark is not None:
        for site in counts:
            _write_cases(out / site / "cases.csv", [case for case in done if case.site == site])
    _write_record(record, settings, counts, problems)
    return ImportReport(counts, written, len(done) - written, tuple(problems), record)


def _check_earlier(out: Path, record: Path, settings: Mapping[str, Any], sites: Sequence[str]) -> None:
    """Refuse a folder that holds the data set imported otherwise, or one of its sites from another data set."""
    for path in sorted(out.glob(DONE.format("*"))):
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{path} cannot be read; import into a new folder") from None
        if path == record:
            if {key: earlier.get(key) for key in settings} != settings:
                raise UserError(f"{out} holds {settings['data set']}, imported otherwise; name a new folder")
        elif common := sorted(set(sites) & set(earlier.get("sites", ()))):
            raise UserError(f"{out} holds the site {common[0]} of {earlier['data set']}; name a new folder")


def _prepare_benchmark(out: Path, name: str | None) -> Benchmark | None:
    """Write `benchmark.yaml`, or check that the one in the folder has the same labels."""
    if name is None:
        return None
    benchmark, path = load_benchmark(name), out / "benchmark.yaml"
    if path.exists():
        mine = load_benchmark(None, out)
        if (mine.labels, mine.encoding) != (benchmark.labels, benchmark.encoding):
            raise UserError(f"{path} has other labels than the benchmark {name!r}; name a new folder")
    else:
        file = resources.files("ttdg.data") / "benchmarks" / f"{name}.yaml"
        write_text(path, file.read_text(encoding="utf-8"))
    return benchmark


def _write_cases(path: Path, cases: Sequence[FoundCase]) -> None:
    """Write the table of patients and splits of a site, if the data set knows any."""
    if not any(case.patient or case.split for case in cases):
        return
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(("case", "patient", "split"))
        lines.writerows((case.name, case.patient or case.name, case.split or "") for case in cases)


def _write_record(
    path: Path, settings: Mapping[str, Any], sites: Mapping[str, int], problems: Sequence[Problem]
) -> None:
    aside = [{"file": str(problem.file), "reason": problem.what} for problem in problems]
    text = json.dumps({**settings, "sites": dict(sites), "set aside": aside}, indent=2, ensure_ascii=False)
    write_text(path, text + "\n")
