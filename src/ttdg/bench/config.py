"""A benchmark run as it is written in yaml; checked here, so that the rest can trust it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from ttdg.errors import UserError, suggestion

ProtocolName = Literal["leave-one-out", "single-to-each", "single-to-mixture", "fixed-source"]
StreamName = Literal["online", "episodic", "continual", "offline"]
Names = list[StrictStr]
Positive = Annotated[StrictInt, Field(ge=1)]
Several = {"min_length": 1}
Scalar = StrictStr | bool | int | float


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Synthetic(_Strict):
    """Drawn hospitals, for runs that need no data."""

    variant: Literal["fundus", "polyp"] = "fundus"
    cases: Positive = 12
    size: Annotated[StrictInt, Field(ge=32)] = 64
    seed: StrictInt = 0


class Tune(_Strict):
    """On what options are chosen: `ttdg.evaluation.tuning.Search` as yaml says it."""

    hospitals: Positive = 8
    images: Positive = 32
    batch: Positive = 4
    farthest: Annotated[float, Field(gt=0)] = 1.0
    seed: StrictInt = 0


class MethodEntry(_Strict):
    """A method with options; `grid` makes one entry for each combination of its values.

    A key of `grid` is an option, PART.SETTING for a setting of the part the method needs, or recipe.FIELD, which
    trains a source model of its own.
    """

    method: StrictStr
    name: StrictStr | None = None
    options: dict[StrictStr, Scalar] = {}
    tuned: bool = False  # beside the options said here, where the experiment is tuned
    parts: dict[StrictStr, dict[StrictStr, Any]] = {}
    grid: dict[StrictStr, Annotated[list[Scalar], Field(**Several)]] = {}  # type: ignore[arg-type]


class Experiment(_Strict):
    """One table: a protocol with its axes."""

    name: StrictStr
    protocol: ProtocolName
    sources: Names = []
    targets: Names = []
    cases: Literal["all", "held-out"] = "all"
    limit: Positive | None = None  # images a target, the first of the stream
    methods: Literal["all"] | Annotated[list[StrictStr | MethodEntry], Field(**Several)] = "all"  # type: ignore[arg-type]
    streams: Annotated[list[StreamName], Field(**Several)] = ["online"]  # type: ignore[arg-type]
    batches: Annotated[list[Positive], Field(**Several)] = [4]  # type: ignore[arg-type]
    seeds: list[StrictInt] | None = None
    tuned: bool = False  # rows that say no option get those that `tune` chooses, split by split
    shuffle: bool = True  # by the seed: video sites hold runs of near-twins
    surfaces: bool = False  # HD95 and ASSD
    instances: bool = False  # the official code's instance-only Dice, beside Dice and never as it


class Config(_Strict):
    name: StrictStr
    data: StrictStr | None = None
    synthetic: Synthetic | None = None
    benchmark: StrictStr | None = None
    size: Annotated[StrictInt, Field(ge=32)] | None = None
    sites: Names = []
    seeds: Annotated[list[StrictInt], Field(**Several)] = [0]  # type: ignore[arg-type]
    recipe: dict[StrictStr, Any] = {}
    parts: dict[StrictStr, dict[StrictStr, Any]] = {}
    tune: Tune | None = None
    baseline: StrictStr = "source"
    harm: Annotated[float, Field(gt=0)] = 5.0  # Dice lost by an image that counts as harmed
    experiments: Annotated[list[Experiment], Field(**Several)]  # type: ignore[arg-type]

    @field_validator("experiments")
    @classmethod
    def _named_once(cls, experiments: list[Experiment]) -> list[Experiment]:
        names = [experiment.name for experiment in experiments]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the name {twice!r} is given twice; name each experiment once")
        return experiments

    @model_validator(mode="after")
    def _tuned_on_something(self) -> "Config":
        asking = next((experiment.name for experiment in self.experiments if experiment.tuned), None)
        if asking is not None and self.tune is None:
            raise ValueError(f"{asking!r} says `tuned: true`, and nothing says on what; add `tune: {{}}`")
        return self


def read_config(path: Path) -> Config:
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path} ({error.__class__.__name__}); name a yaml file such as experiments/smoke.yaml"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not a yaml file: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} must hold the fields {', '.join(Config.model_fields)}")
    return parse_config(fields, str(path))


def parse_config(fields: Mapping[str, Any], source: str) -> Config:
    """`source` names the file in the error that a bad field gets."""
    try:
        return Config.model_validate(dict(fields))
    except ValidationError as error:
        raise UserError(f"{source}: {_in_words(error)}") from None


KNOWN: Mapping[str, type[BaseModel]] = {
    "experiments": Experiment,
    "methods": MethodEntry,
    "synthetic": Synthetic,
    "tune": Tune,
}


def _in_words(error: ValidationError) -> str:
    """One clause a mistake; a key that is not known is said with the nearest that is."""
    clauses = []
    for mistake in error.errors():
        where = [str(part) for part in mistake["loc"]]
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            key = where.pop()
            home = next((KNOWN[part] for part in reversed(where) if part in KNOWN), Config)
            message = f"unknown key {key!r}{suggestion(key, home.model_fields)}"
        elif mistake["type"] in ("string_type", "literal_error") and "methods" in where[:-1]:
            continue  # the other arm of a union: what was meant is in the mistake that stays
        clauses.append(": ".join([*(part for part in where if not _arm(part)), message]))
    return "; ".join(dict.fromkeys(clauses)) or "`methods` is a list of names and of entries, or `all`"


def _arm(part: str) -> bool:
    """pydantic names the arm of a union it tried; a reader of yaml did not write it."""
    return part in ("MethodEntry", "str") or part.startswith(("list[", "literal[", "constrained-"))
