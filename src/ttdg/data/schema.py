"""The schema of a benchmark's yaml file, in which labels are given by name, and its validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    model_validator,
)

from ttdg.errors import UserError, suggestion

NamedNormalisation = Literal["minmax", "imagenet", "zscore", "clipped-zscore"]


@dataclass(frozen=True)
class NetworkInput:
    """The input of a network from outside this project: its channels, and a normalisation by name or by two numbers."""

    channels: int  # 3, or 1: the mean of the three channels
    name: NamedNormalisation | None  # None stretches [0, 1] to [low, high]
    low: float = 0.0
    high: float = 1.0


Normalisation = NamedNormalisation | NetworkInput

Task = Literal["segmentation", "classification"]

KINDS = ("by threshold", "by value")  # the two ways to encode labels in a mask
MAX_LABELS = 255  # a label index is a byte, and one value is reserved for "no label"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ThresholdSpec(_Strict):
    """The entry `mask` of a benchmark whose masks are read by a threshold."""

    threshold: Annotated[StrictInt, Field(ge=0, le=254)]
    above: StrictStr
    below: StrictStr


ExactSpec = Annotated[dict[Annotated[int, Field(ge=0, le=255)], StrictStr], Field(min_length=2)]


def _kind(mask: object) -> str:
    """Return `by value` if all keys are grey values (strings of digits after JSON), else `by threshold`."""
    keys = mask if isinstance(mask, dict) else ()
    return KINDS[0] if any(isinstance(key, str) and not key.isdigit() for key in keys) else KINDS[1]


class BenchmarkSpec(_Strict):
    """All entries of a benchmark's yaml file."""

    name: StrictStr
    labels: Annotated[list[StrictStr], Field(min_length=2, max_length=MAX_LABELS)]
    mask: (
        Annotated[
            Annotated[ThresholdSpec, Tag(KINDS[0])] | Annotated[ExactSpec, Tag(KINDS[1])],
            Discriminator(_kind),
        ]
        | None
    ) = None
    regions: (
        Annotated[dict[StrictStr, Annotated[list[StrictStr], Field(min_length=1)]], Field(min_length=1)]
        | None
    ) = None
    normalisation: NamedNormalisation
    size: Annotated[StrictInt, Field(ge=8, le=8192)]
    volumes: bool = False
    task: Task = "segmentation"

    @model_validator(mode="after")
    def _labels_agree(self) -> "BenchmarkSpec":
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("each label must be named only once")
        mask, regions = self.mask, self.regions
        if self.task == "classification":
            if mask is not None or regions is not None or self.volumes:
                raise ValueError(
                    "a classification has neither masks nor regions nor volumes; remove these entries"
                )
            return self
        if mask is None or regions is None:
            missing_entry = "mask" if mask is None else "regions"
            raise ValueError(f"{missing_entry}: Field required")
        encoded = [mask.above, mask.below] if isinstance(mask, ThresholdSpec) else list(mask.values())
        uses = [("mask", label) for label in encoded]
        uses += [(f"region {name!r}", label) for name, labels in regions.items() for label in labels]
        for where, label in uses:
            if label not in self.labels:
                raise ValueError(f"{where} uses the unknown label {label!r}{suggestion(label, self.labels)}")
        if missing := set(self.labels) - set(encoded):
            raise ValueError(f"no grey value of `mask` stands for {', '.join(sorted(missing))}")
        return self


def validated(fields: Mapping[str, Any], source: str) -> BenchmarkSpec:
    """Validate the entries of a benchmark file; error messages name the file `source`."""
    try:
        return BenchmarkSpec.model_validate(dict(fields))
    except ValidationError as error:
        raise UserError(f"{source}: {_in_words(error)}") from None


def _in_words(error: ValidationError) -> str:
    """Return one clause for each mistake; an unknown key comes with the most similar known key."""
    clauses = []
    for mistake in error.errors():
        where = [str(part) for part in mistake["loc"] if part not in (*KINDS, "[key]")]
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            known = BenchmarkSpec.model_fields if len(where) == 1 else ThresholdSpec.model_fields
            message = f"unknown key {where.pop()!r}{suggestion(str(mistake['loc'][-1]), known)}"
        clauses.append(": ".join([*where, message]))
    return "; ".join(clauses)
