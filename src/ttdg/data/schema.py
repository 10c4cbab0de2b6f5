"""A benchmark as it is written in yaml, labels by name; checked here, so that the rest can trust it."""

from collections.abc import Mapping
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

Normalisation = Literal["minmax", "imagenet"]

KINDS = ("by threshold", "by value")  # how a mask encodes labels
MAX_LABELS = 255  # a label is a byte, and one byte is left over for "no label"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ThresholdSpec(_Strict):
    threshold: Annotated[StrictInt, Field(ge=0, le=254)]
    above: StrictStr
    below: StrictStr


ExactSpec = Annotated[dict[Annotated[int, Field(ge=0, le=255)], StrictStr], Field(min_length=2)]


def _kind(mask: object) -> str:
    """Grey values as keys (strings once they have been through JSON) are exact; words are a threshold."""
    keys = mask if isinstance(mask, dict) else ()
    return KINDS[0] if any(isinstance(key, str) and not key.isdigit() for key in keys) else KINDS[1]


class BenchmarkSpec(_Strict):
    name: StrictStr
    labels: Annotated[list[StrictStr], Field(min_length=2, max_length=MAX_LABELS)]
    mask: Annotated[
        Annotated[ThresholdSpec, Tag(KINDS[0])] | Annotated[ExactSpec, Tag(KINDS[1])], Discriminator(_kind)
    ]
    regions: Annotated[dict[StrictStr, Annotated[list[StrictStr], Field(min_length=1)]], Field(min_length=1)]
    normalisation: Normalisation
    size: Annotated[StrictInt, Field(ge=8, le=8192)]

    @model_validator(mode="after")
    def _labels_agree(self) -> "BenchmarkSpec":
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("each label must be named once")
        mask = self.mask
        encoded = [mask.above, mask.below] if isinstance(mask, ThresholdSpec) else list(mask.values())
        uses = [("mask", label) for label in encoded]
        uses += [(f"region {name!r}", label) for name, labels in self.regions.items() for label in labels]
        for where, label in uses:
            if label not in self.labels:
                raise ValueError(f"{where} uses the unknown label {label!r}{suggestion(label, self.labels)}")
        if missing := set(self.labels) - set(encoded):
            raise ValueError(f"no grey value of `mask` stands for {', '.join(sorted(missing))}")
        return self


def validated(fields: Mapping[str, Any], source: str) -> BenchmarkSpec:
    """`source` names the file in the error that a bad field gets."""
    try:
        return BenchmarkSpec.model_validate(dict(fields))
    except ValidationError as error:
        raise UserError(f"{source}: {_in_words(error)}") from None


def _in_words(error: ValidationError) -> str:
    """One clause a mistake; a key that is not known is said with the nearest that is."""
    clauses = []
    for mistake in error.errors():
        where = [str(part) for part in mistake["loc"] if part not in (*KINDS, "[key]")]
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            known = BenchmarkSpec.model_fields if len(where) == 1 else ThresholdSpec.model_fields
            message = f"unknown key {where.pop()!r}{suggestion(str(mistake['loc'][-1]), known)}"
        clauses.append(": ".join([*where, message]))
    return "; ".join(clauses)
