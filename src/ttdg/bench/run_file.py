"""`run.json`: the plan of a run, written before the first job starts and read by reports and verification."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ttdg.bench.jobs import Job, from_dict, to_dict
from ttdg.errors import UserError
from ttdg.evaluation.records import FORMAT
from ttdg.fields import wrong_field
from ttdg.files import write_text

SETTINGS = re.compile(r" \[.*\]")  # what a grid puts into the label of a row


@dataclass(frozen=True)
class TableEntry:
    """A scoring's position in a table; one scoring may appear in several tables."""

    experiment: str
    protocol: str
    label: str  # name of the table row
    sources: str
    job: str


@dataclass(frozen=True)
class RunPlan:
    """All jobs of a run by key, and the tables they appear in."""

    name: str
    baseline: str
    harm: float
    config: Mapping[str, Any]
    jobs: Mapping[str, Job]
    entries: tuple[TableEntry, ...]
    data: str = ""  # data folder of the run; empty in published records, as is `models`
    models: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)  # site → hash of what its table says of the cases


def is_baseline(label: str, baseline: str) -> bool:
    """True if a row has the name of the baseline, with or without the settings of a grid."""
    return baseline in (label, without_settings(label))


def without_settings(label: str) -> str:
    """Return the label of a row without the settings of a grid: "source + flips" for "source [size=2] + flips"."""
    return SETTINGS.sub("", label)


def write_run(folder: Path, run: RunPlan) -> None:
    """Write `run.json` atomically."""
    fields = {
        name: getattr(run, name) for name in RunPlan.__dataclass_fields__ if name not in ("jobs", "entries")
    }
    jobs = {key: to_dict(job) for key, job in run.jobs.items()}
    text = {"format": FORMAT, **fields, "entries": [asdict(e) for e in run.entries], "jobs": jobs}
    write_text(folder / "run.json", json.dumps(text) + "\n")


class DamagedRun(UserError):
    """`run.json` is of this format, but cannot be read."""


def read_run(folder: Path) -> RunPlan:
    """Read `run.json`; a missing or damaged file, or one of another format, raises a UserError."""
    path = folder / "run.json"
    if not path.is_file():
        raise UserError(
            f"no run at {folder}: the file run.json is missing; run a benchmark into this folder first"
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        found = fields.pop("format")
        if found == FORMAT:
            jobs = {key: from_dict(spec) for key, spec in fields.pop("jobs").items()}
            entries = tuple(TableEntry(**entry) for entry in fields.pop("entries"))
            if unknown := {entry.job for entry in entries} - jobs.keys():
                raise ValueError(f"no job {min(unknown)}")
            run = RunPlan(**fields, jobs=jobs, entries=entries)
            if wrong := wrong_field(run):
                raise ValueError(f"{wrong} of another kind")
            return run
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise DamagedRun(
            f"{path} cannot be read ({error!r:.120}); run the same benchmark into this folder again: "
            "the records are kept"
        ) from None
    raise UserError(
        f"{folder} was made with record format {found}, this ttdg has {FORMAT}; use the version that made it, "
        "or choose another output folder"
    )
