"""Types of the fields of a benchmark's yaml file: the names that a field takes, and lists of them without repeats."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, StrictStr

ProtocolName = Literal[
    "leave-one-out", "single-to-each", "single-to-mixture", "fixed-source", "ceiling", "home"
]
StreamName = Literal["online", "episodic", "continual", "offline", "folder"]
LearnRule = Literal["all", "one-per-patient", "one-per-scene"]
OrderName = Literal["site", "volume", "shuffled-volume"]
ViewsName = Literal["plain", "flips", "scales"]
StatisticsName = Literal["own", "eval", "mix", "batch"]


def _without_repeats(given: list[Any]) -> list[Any]:
    if repeated := [value for value in given if given.count(value) > 1]:
        raise ValueError(f"{repeated[0]!r} is given twice; remove one of them")
    return given


Unique = AfterValidator(_without_repeats)
Names = Annotated[list[StrictStr], Unique]
Positive = Annotated[StrictInt, Field(ge=1)]
NonEmpty = {"min_length": 1}
Scalar = StrictStr | bool | int | float
OneOrMore = BeforeValidator(lambda given: [given] if isinstance(given, str | bool) else given)
SomeViews = Annotated[list[ViewsName], Field(**NonEmpty), OneOrMore, Unique]  # type: ignore[arg-type]
SomeStatistics = Annotated[list[StatisticsName], Field(**NonEmpty), OneOrMore, Unique]  # type: ignore[arg-type]
Seeds = Annotated[list[StrictInt], Field(**NonEmpty), Unique]  # type: ignore[arg-type]
WithGate = Annotated[list[StrictBool], Field(**NonEmpty), OneOrMore, Unique]  # type: ignore[arg-type]
