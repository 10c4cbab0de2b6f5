"""What a run says of itself: `run.json`, written before the first job and read by every command that comes after."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ttdg.bench.jobs import Job, from_dict, to_dict
from ttdg.errors import UserError
from ttdg.evaluation.records import FORMAT
from ttdg.files import write_text


@dataclass(frozen=True)
class TableEntry:
    """A scoring's place in a table: the same scoring may stand in several."""

    experiment: str
    protocol: str
    label: str  # of the method
    sources: str
    job: str


@dataclass(frozen=True)
class RunPlan:
    """The plan: every job by its key, and the tables they stand in."""

    name: str
    baseline: str
    harm: float
    config: Mapping[str, Any]
    jobs: Mapping[str, Job]
    entries: tuple[TableEntry, ...]
    data: str = ""  # where the images lay; left out of what is published
    models: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def write_run(folder: Path, run: RunPlan) -> None:
    fields = {
        name: getattr(run, name) for name in RunPlan.__dataclass_fields__ if name not in ("jobs", "entries")
    }
    jobs = {key: to_dict(job) for key, job in run.jobs.items()}
    text = {"format": FORMAT, **fields, "entries": [asdict(e) for e in run.entries], "jobs": jobs}
    write_text(folder / "run.json", json.dumps(text) + "\n")


def read_run(folder: Path) -> RunPlan:
    path = folder / "run.json"
    if not path.is_file():
        raise UserError(f"no run at {folder}: `ttdg bench CONFIG.yaml --out {folder}` makes one")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        found = fields.pop("format")
        if found == FORMAT:
            jobs = {key: from_dict(spec) for key, spec in fields.pop("jobs").items()}
            entries = tuple(TableEntry(**entry) for entry in fields.pop("entries"))
            return RunPlan(**fields, jobs=jobs, entries=entries)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(
            f"{path} cannot be read ({error!r:.120}); give the `ttdg bench` command again: it keeps the records"
        ) from None
    raise UserError(
        f"{folder} was made with record format {found}, this ttdg has {FORMAT}; use the ttdg that made it, "
        "or choose another --out"
    )
