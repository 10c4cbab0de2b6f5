"""A job is a pure function of its spec; its key is the hash of all that its result depends on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ttdg.experiment.protocol import Target

FORMAT = 1  # of records; a change here makes every key another


@dataclass(frozen=True)
class Training:
    """A source model. Data and encoder weights enter by their hashes, so that the folder they lie in does not."""

    benchmark: Mapping[str, Any]
    sources: Mapping[str, str]  # site → fingerprint
    recipe: Mapping[str, Any]  # `encoder_weights` is the file's hash


@dataclass(frozen=True)
class Fitting:
    """A part that a method needs from source time, fitted to a source model."""

    training: str
    part: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Scoring:
    """A source model, a method with every option said, and the targets it meets."""

    training: str
    method: str
    options: Mapping[str, Any]  # those that are not the default
    defaults: Mapping[str, str]  # the others, as text: a new default is a new job
    targets: tuple[Target, ...]
    sites: Mapping[str, str]  # site → fingerprint
    stream: str
    batch: int
    seed: int
    cases: str = "all"
    limit: int | None = None
    shuffle: bool = True
    surfaces: bool = False
    instances: bool = False
    fittings: Mapping[str, str] = field(default_factory=dict)  # part → key of its fitting


Job = Training | Fitting | Scoring
KINDS: Mapping[str, type[Job]] = {"train": Training, "fit": Fitting, "score": Scoring}


def key_of(job: Job) -> str:
    """Sixteen hexadecimal digits. Order of fields and of dictionaries does not count."""
    text = json.dumps({"format": FORMAT, **to_dict(job)}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def kind_of(job: Job) -> str:
    return next(name for name, kind in KINDS.items() if type(job) is kind)


def needs(job: Job) -> tuple[str, ...]:
    """Keys of the jobs that must be done before."""
    if isinstance(job, Training):
        return ()
    return (job.training, *(job.fittings.values() if isinstance(job, Scoring) else ()))


def to_dict(job: Job) -> dict[str, Any]:
    """What survives JSON."""
    return json.loads(json.dumps({"kind": kind_of(job), **asdict(job)}))


def from_dict(fields: Mapping[str, Any]) -> Job:
    values = dict(fields)
    kind = KINDS[values.pop("kind")]
    if kind is Scoring:
        values["targets"] = tuple(Target(t["name"], tuple(t["sites"])) for t in values["targets"])
    return kind(**values)


def describe(job: Job) -> str:
    """A line for people."""
    if isinstance(job, Training):
        return f"train on {', '.join(job.sources)} (seed {job.recipe['seed']})"
    if isinstance(job, Fitting):
        return f"fit {job.part} to {job.training}"
    where = " → ".join(target.name for target in job.targets)
    return f"{job.method} at {where} ({job.stream}, batch {job.batch}, seed {job.seed})"
