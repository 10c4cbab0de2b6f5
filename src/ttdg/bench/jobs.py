"""The four kinds of job. A job's key is a hash of everything that its result depends on."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ttdg.bench.protocols import Target
from ttdg.evaluation.records import FORMAT, row_label

# Recipe fields added after the first records: at these values they are left out of the key, so old keys stay valid.
LATER_RECIPE_FIELDS: Mapping[str, Any] = {"points": 40, "sampling": 4, "edges": 0.0, "tau": 0.1}

# The same for options of methods: option → the value, as text, that rows had before the option existed.
LATER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "self-training": {"moves": "True"},
    "universe": {
        "carrier": "'universe'",
        "agreeing": "False",
        "scales": "False",
        "places": "'equal'",
        "anatomy": "'steady'",
        "moves": "True",
        "anchored": "0.0",
    },
}

# The same for options that no longer exist: records have them among the defaults of their rows.
REMOVED_OPTIONS: Mapping[str, Mapping[str, str]] = {"universe": {"fitted_share": "False"}}

# The same for fields of a scoring.
LATER_SCORING_FIELDS: Mapping[str, Any] = {
    "tuning": None, "views": "plain", "learn": "all", "order": "site", "statistics": "own",
    "deterministic": False, "gate": False,
}  # fmt: skip

# The same for fields of a tuning.
LATER_TUNING_FIELDS: Mapping[str, Any] = {"statistics": "own", "deterministic": False}


@dataclass(frozen=True)
class Training:
    """Train a source model. Hashes stand for data and encoder weights, so their paths do not affect the key."""

    benchmark: Mapping[str, Any]
    sources: Mapping[str, str]  # site → fingerprint
    recipe: Mapping[str, Any]  # `encoder_weights` is the file's hash


@dataclass(frozen=True)
class Fitting:
    """Fit a part that a method needs to a source model."""

    training: str
    part: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Tuning:
    """Choose a method's options on simulated hospitals made of held-out images of the source sites.

    The job names no site and reads only the source sites of its model, so no target can influence the choice.
    """

    training: str
    method: str
    search: Mapping[str, Any]
    configurations: tuple[Mapping[str, Any], ...]
    defaults: Mapping[str, str]  # option → default as text, for options that are not searched
    fittings: Mapping[str, str] = field(default_factory=dict)
    statistics: str = "own"  # BatchNorm statistics under the method; see `ttdg.adaptation.statistics_base`
    deterministic: bool = False  # with a fixed order of sums on a GPU; see `ttdg.networks.determinism`


@dataclass(frozen=True)
class Scoring:
    """Adapt a source model with one method to a stream of target images, and score the predictions."""

    training: str
    method: str
    options: Mapping[str, Any]  # options that differ from the default
    defaults: Mapping[
        str, str
    ]  # the other options with their defaults as text, so a changed default changes the key
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
    fittings: Mapping[str, str] = field(default_factory=dict)  # part → key of the fitting job
    tuning: str | None = None  # key of the tuning job that chooses the remaining options
    views: str = "plain"  # over which the answers are averaged
    learn: str = (
        "all"  # images from which the folder stream learns; see `ttdg.data.image_cache.learning_images`
    )
    order: str = "site"  # whether images come volume by volume; see `ttdg.data.volumes.grouping.Order`
    statistics: str = "own"  # BatchNorm statistics under the method; see `ttdg.adaptation.statistics_base`
    deterministic: bool = False  # with a fixed order of sums on a GPU; see `ttdg.networks.determinism`
    gate: bool = False  # whether the gate of `ttdg.adaptation.gate` is around the method


Job = Training | Fitting | Tuning | Scoring
KINDS: Mapping[str, type[Job]] = {"train": Training, "fit": Fitting, "tune": Tuning, "score": Scoring}


def key_of(job: Job) -> str:
    """Return the job's key: sixteen hexadecimal digits, independent of the order of dictionaries."""
    fields = {"format": FORMAT, "kind": kind_of(job), **key_fields(job)}
    text = json.dumps(fields, sort_keys=True, allow_nan=False, default=vars)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def key_fields(job: Job) -> dict[str, Any]:
    """Return the job's fields without later additions that have their earlier, implicit value."""
    fields = dict(vars(job))
    if isinstance(job, Training):
        recipe = fields["recipe"].items()
        fields["recipe"] = {
            name: value for name, value in recipe if LATER_RECIPE_FIELDS.get(name, ...) != value
        }
    elif isinstance(job, Scoring | Tuning):
        later = {**LATER_OPTIONS.get(job.method, {}), **REMOVED_OPTIONS.get(job.method, {})}
        fields["defaults"] = {name: text for name, text in job.defaults.items() if later.get(name) != text}
        if isinstance(job, Scoring):
            given = job.options.items()
            fields["options"] = {name: value for name, value in given if later.get(name) != repr(value)}
        added = LATER_SCORING_FIELDS if isinstance(job, Scoring) else LATER_TUNING_FIELDS
        fields = {name: value for name, value in fields.items() if added.get(name, ...) != value}
    return fields


def kind_of(job: Job) -> str:
    """Return the name of the job's kind: train, fit, tune or score."""
    return next(name for name, kind in KINDS.items() if type(job) is kind)


def required_jobs(job: Job) -> tuple[str, ...]:
    """Return the keys of the jobs that must finish before this one."""
    if isinstance(job, Training):
        return ()
    if isinstance(job, Fitting):
        return (job.training,)
    tuning = (job.tuning,) if isinstance(job, Scoring) and job.tuning else ()
    return (job.training, *job.fittings.values(), *tuning)


def model_of(key: str, job: Job) -> str:
    """Return the key of the source model that a job uses; a worker keeps the model of its last job in memory."""
    return key if isinstance(job, Training) else job.training


def without_views(job: Job) -> str | None:
    """Return the key of the same scoring without views, whose record the job writes too; None if there is none.

    Both need the same adaptation, which the views do not change. The gate decides about averaged answers, so a scoring
    behind it stands alone.
    """
    if not isinstance(job, Scoring) or job.views == "plain" or job.gate:
        return None
    return key_of(replace(job, views="plain"))


def with_required(jobs: Mapping[str, Job], keys: Iterable[str]) -> dict[str, Job]:
    """Return the jobs with these keys and all jobs they depend on, in the order of `jobs`."""
    selected, new = set[str](), set(keys)
    while new:
        selected |= new
        new = {required for key in new for required in required_jobs(jobs[key])} - selected
    return {key: job for key, job in jobs.items() if key in selected}


def to_dict(job: Job) -> dict[str, Any]:
    """Return the job's specification as JSON-compatible values."""
    return json.loads(json.dumps({"kind": kind_of(job), **vars(job)}, default=vars))


def from_dict(fields: Mapping[str, Any]) -> Job:
    """Make a job from its specification; the inverse of `to_dict`."""
    values = dict(fields)
    kind = KINDS[values.pop("kind")]
    if kind is Scoring:
        values["targets"] = tuple(Target(t["name"], tuple(t["sites"])) for t in values["targets"])
    if kind is Tuning:
        values["configurations"] = tuple(values["configurations"])
    return kind(**values)


def job_title(job: Job) -> str:
    """Describe the job in one line for logs and progress."""
    if isinstance(job, Training):
        return f"train on {', '.join(job.sources)} (seed {job.recipe['seed']})"
    if isinstance(job, Fitting):
        return f"fit {job.part} to {job.training}"
    if isinstance(job, Tuning):
        return f"tune {row_label(job.method, 'plain', job.statistics)} on sources of {job.training}"
    where = " → ".join(target.name for target in job.targets)
    row = row_label(job.method, job.views, job.statistics, job.gate)
    return f"{row} at {where} ({job.stream}, batch {job.batch}, seed {job.seed})"
