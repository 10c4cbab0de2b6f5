"""A job is a pure function of its spec; its key is the hash of all that its result depends on."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ttdg.evaluation.protocols import Target
from ttdg.evaluation.records import FORMAT

# fields of the recipe newer than the format: at this value not in a key
LATER: Mapping[str, Any] = {"points": 40, "sampling": 4, "edges": 0.0, "tau": 0.1}


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
class Tuning:
    """A method's options, chosen on simulated hospitals made of held-out images of the model's own sources.

    It names no site: the model's sources are all it reads, so that no target can have a say.
    """

    training: str
    method: str
    search: Mapping[str, Any]
    configurations: tuple[Mapping[str, Any], ...]
    defaults: Mapping[str, str]  # options that are not searched, as text
    fittings: Mapping[str, str] = field(default_factory=dict)


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
    tuning: str | None = None  # the key of what chooses further options


Job = Training | Fitting | Tuning | Scoring
KINDS: Mapping[str, type[Job]] = {"train": Training, "fit": Fitting, "tune": Tuning, "score": Scoring}


def key_of(job: Job) -> str:
    """Sixteen hexadecimal digits. Order of fields and of dictionaries does not count."""
    fields = {"format": FORMAT, "kind": kind_of(job), **_counted(job)}
    text = json.dumps(fields, sort_keys=True, allow_nan=False, default=vars)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _counted(job: Job) -> dict[str, Any]:
    """The fields, less those that came later and say what was the case before."""
    fields = dict(vars(job))
    if isinstance(job, Training):
        recipe = fields["recipe"].items()
        fields["recipe"] = {name: value for name, value in recipe if LATER.get(name, ...) != value}
    elif isinstance(job, Scoring) and job.tuning is None:
        del fields["tuning"]
    return fields


def kind_of(job: Job) -> str:
    return next(name for name, kind in KINDS.items() if type(job) is kind)


def required_jobs(job: Job) -> tuple[str, ...]:
    """Keys of the jobs that must be done before."""
    if isinstance(job, Training):
        return ()
    if isinstance(job, Fitting):
        return (job.training,)
    tuning = (job.tuning,) if isinstance(job, Scoring) and job.tuning else ()
    return (job.training, *job.fittings.values(), *tuning)


def model_of(key: str, job: Job) -> str:
    """The source model a job works with: what a process that did one such job has at hand for the next."""
    return key if isinstance(job, Training) else job.training


def with_required(jobs: Mapping[str, Job], keys: Iterable[str]) -> dict[str, Job]:
    """These jobs, what they need, and what that needs, in the order of `jobs`."""
    wanted, new = set[str](), set(keys)
    while new:
        wanted |= new
        new = {need for key in new for need in required_jobs(jobs[key])} - wanted
    return {key: job for key, job in jobs.items() if key in wanted}


def to_dict(job: Job) -> dict[str, Any]:
    """What survives JSON."""
    return json.loads(json.dumps({"kind": kind_of(job), **vars(job)}, default=vars))


def from_dict(fields: Mapping[str, Any]) -> Job:
    values = dict(fields)
    kind = KINDS[values.pop("kind")]
    if kind is Scoring:
        values["targets"] = tuple(Target(t["name"], tuple(t["sites"])) for t in values["targets"])
    if kind is Tuning:
        values["configurations"] = tuple(values["configurations"])
    return kind(**values)


def job_title(job: Job) -> str:
    """A line for people."""
    if isinstance(job, Training):
        return f"train on {', '.join(job.sources)} (seed {job.recipe['seed']})"
    if isinstance(job, Fitting):
        return f"fit {job.part} to {job.training}"
    if isinstance(job, Tuning):
        return f"tune {job.method} on sources of {job.training}"
    where = " → ".join(target.name for target in job.targets)
    return f"{job.method} at {where} ({job.stream}, batch {job.batch}, seed {job.seed})"
