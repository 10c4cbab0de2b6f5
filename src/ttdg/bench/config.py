"""The yaml file of a benchmark run, read and validated."""

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

from ttdg.bench.config_fields import (
    LearnRule,
    Names,
    NonEmpty,
    OrderName,
    Positive,
    ProtocolName,
    Scalar,
    Seeds,
    SomeStatistics,
    SomeViews,
    StreamName,
    Unique,
    WithGate,
)
from ttdg.bench.protocols import ON_TRAINED_SITES
from ttdg.errors import UserError, suggestion
from ttdg.fields import not_finite


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Synthetic(_Strict):
    """Synthetic hospitals, drawn for the run, so that no data set is needed."""

    variant: Literal["fundus", "polyp", "prostate", "shapes"] = "fundus"
    cases: Positive = 12  # images of each hospital, or volumes
    size: Annotated[StrictInt, Field(ge=32)] = 64
    seed: StrictInt = 0


class Tune(_Strict):
    """Simulated hospitals on which options are chosen. Omitted fields follow the rows that are tuned.

    The fields belong to `ttdg.evaluation.tuning.Search`.
    """

    hospitals: Positive | None = None  # None: three to eight, fewer the longer their streams
    images: Positive | None = None  # per hospital; None: the experiment's `limit`, or the largest source site
    budget: Positive | None = (
        None  # images of all hospitals together, at most; bounds the length of their streams
    )
    batch: Positive | None = None  # None: the batch size of the row
    farthest: Annotated[float, Field(gt=0)] = 1.0
    seed: StrictInt = 0
    extensions: Annotated[StrictInt, Field(ge=0)] = 3  # configurations added while the best lies at an edge


class MethodEntry(_Strict):
    """A method with options; `grid` makes one table row for each combination of its values.

    A key of `grid` is an option of the method, PART.SETTING for a setting of a part that the method needs, or
    recipe.FIELD, which trains a separate source model for each value. With `options: published`, `method: all` stands
    for every method that has a published setting, and `method: continual` for those published as continual.
    """

    method: StrictStr
    name: StrictStr | None = None
    options: Literal["published"] | dict[StrictStr, Scalar] = {}  # `published`: those of the publication
    tuned: bool = False  # choose the options that are not given here, if the experiment is tuned
    parts: dict[StrictStr, dict[StrictStr, Any]] = {}
    grid: dict[StrictStr, Annotated[list[Scalar], Field(**NonEmpty)]] = {}  # type: ignore[arg-type]
    views: SomeViews | None = None  # over which answers are averaged, a row for each; None: the experiment's
    statistics: SomeStatistics | None = None  # BatchNorm statistics, a row for each; None: the experiment's
    gate: WithGate | None = (
        None  # whether the gate is around the method, a row for each; None: the experiment's
    )

    @model_validator(mode="after")
    def _check_published_is_not_tuned(self) -> "MethodEntry":
        if self.options == "published" and self.tuned:
            raise ValueError(
                f"{self.method!r} has `options: published` and `tuned: true`; remove one of them"
            )
        return self


class Experiment(_Strict):
    """One table: a protocol and the settings that are combined with it."""

    name: StrictStr
    protocol: ProtocolName
    sources: Names = []
    targets: Names = []
    cases: Literal["all", "held-out"] = "all"
    limit: Positive | None = None  # number of images per target, taken from the start of the stream
    methods: Literal["all", "continual"] | Annotated[list[StrictStr | MethodEntry], Field(**NonEmpty)] = "all"  # type: ignore[arg-type]
    streams: Annotated[list[StreamName], Field(**NonEmpty), Unique] = ["online"]  # type: ignore[arg-type]
    batches: Annotated[list[Positive], Field(**NonEmpty), Unique] = [4]  # type: ignore[arg-type]
    views: SomeViews = ["plain"]  # a row of every method for each of them
    statistics: SomeStatistics = ["own"]  # a row for each, of the methods that allow it
    gate: WithGate = [
        False
    ]  # a row without and with the gate, of the methods that do not judge their own answers
    learn: LearnRule = "all"  # images from which the folder stream learns; all images are answered
    seeds: Seeds | None = None
    tuned: bool = False  # rows without options get options chosen by `tune`, for each split of sites
    shuffle: bool = True  # shuffle images by the seed: neighbouring frames of video sites are near-duplicates
    order: OrderName = (
        "site"  # by volume: a batch holds slices of one volume, and `shuffle` shuffles the volumes
    )
    surfaces: bool = False  # also measure HD95 and ASSD
    instances: bool = (
        False  # also measure the official code's instance-only Dice, reported separately from Dice
    )

    @model_validator(mode="after")
    def _check_learning_comes_first(self) -> "Experiment":
        if self.learn != "all" and self.streams != ["folder"]:
            raise ValueError(
                f"{self.name!r} has `learn: {self.learn}`, but only the stream folder learns before it answers; add "
                "`streams: [folder]`"
            )
        return self

    @model_validator(mode="after")
    def _check_tuned_rows_are_in_a_tuned_experiment(self) -> "Experiment":
        entries = [entry for entry in self.methods if isinstance(entry, MethodEntry)]
        if not self.tuned and (entry := next((entry for entry in entries if entry.tuned), None)):
            raise ValueError(
                f"{entry.method!r} has `tuned: true`, but its experiment {self.name!r} has not; add `tuned: true` there"
            )
        return self

    @model_validator(mode="after")
    def _check_trained_sites_are_held_out(self) -> "Experiment":
        if self.protocol in ON_TRAINED_SITES and self.cases != "held-out":
            raise ValueError(
                f"{self.name!r} trains on its targets; add `cases: held-out` to score other patients only"
            )
        if self.protocol in ON_TRAINED_SITES and self.tuned:
            raise ValueError(
                f"{self.name!r} scores the held-out patients of source sites, on which options are tuned; remove "
                "`tuned`"
            )
        return self


class Config(_Strict):
    """A benchmark run: data, recipe of the source models, and experiments."""

    name: StrictStr
    data: StrictStr | None = None
    synthetic: Synthetic | None = None
    benchmark: StrictStr | None = None
    size: Annotated[StrictInt, Field(ge=32)] | None = None
    sites: Names = []
    seeds: Seeds = [0]
    recipe: dict[StrictStr, Any] = {}
    parts: dict[StrictStr, dict[StrictStr, Any]] = {}
    tune: Tune | None = None
    deterministic: bool = False  # tune and score with a fixed order of sums on a GPU, where PyTorch has one
    baseline: StrictStr = "source"
    harm: Annotated[float, Field(gt=0)] = (
        5.0  # an image that loses more Dice points than this counts as harmed
    )
    experiments: Annotated[list[Experiment], Field(**NonEmpty)]  # type: ignore[arg-type]

    @field_validator("experiments")
    @classmethod
    def _check_unique_names(cls, experiments: list[Experiment]) -> list[Experiment]:
        names = [experiment.name for experiment in experiments]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the name {twice!r} is given twice; use a different name for each experiment")
        return experiments

    @model_validator(mode="after")
    def _check_tuning_is_described(self) -> "Config":
        tuned = next((experiment.name for experiment in self.experiments if experiment.tuned), None)
        if tuned is not None and self.tune is None:
            raise ValueError(f"{tuned!r} has `tuned: true`, but the file has no `tune`; add `tune: {{}}`")
        return self


def read_config(path: Path) -> Config:
    """Read and validate a yaml file; a mistake in the file raises a UserError."""
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path} ({error.__class__.__name__}); name a yaml file such as experiments/smoke.yaml"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not a yaml file: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} must hold the fields {', '.join(Config.model_fields)}")
    return parse_config(fields, str(path))


def parse_config(fields: Mapping[str, Any], source: str) -> Config:
    """Validate the fields of a yaml file; `source` names the file in error messages."""
    try:
        config = Config.model_validate(dict(fields))
    except ValidationError as error:
        raise UserError(f"{source}: {_in_words(error)}") from None
    if (where := not_finite(config.model_dump())) is not None:
        raise UserError(f"{source}: {where}: a number must be finite; correct it")
    return config


_MODELS: Mapping[str, type[BaseModel]] = {
    "experiments": Experiment,
    "methods": MethodEntry,
    "synthetic": Synthetic,
    "tune": Tune,
}


def _in_words(error: ValidationError) -> str:
    """Write one clause per mistake; for an unknown key the clause names the closest known key."""
    clauses = []
    for mistake in error.errors():
        where = [str(part) for part in mistake["loc"]]
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            key = where.pop()
            model = next((_MODELS[part] for part in reversed(where) if part in _MODELS), Config)
            message = f"unknown key {key!r}{suggestion(key, model.model_fields)}"
        elif (
            mistake["type"] in ("string_type", "literal_error")
            and "methods" in where[:-1]
            and not {"views", "statistics", "gate"} & {*where}
        ):
            continue  # another alternative of the union; the mistake of the intended alternative is reported
        clauses.append(": ".join([*(part for part in where if not _is_union_alternative(part)), message]))
    return (
        "; ".join(dict.fromkeys(clauses))
        or "`methods` must be `all`, `continual` or a list of names and entries"
    )


def _is_union_alternative(part: str) -> bool:
    """True for the name pydantic gives to an alternative of a union, which is not a key of the yaml file."""
    kinds = ("list[", "dict[", "literal[", "constrained-", "function-")
    return part in ("MethodEntry", "str") or part.startswith(kinds)
