"""Checks of values that were read from a file against the annotations of a dataclass."""

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

LARGEST = 2**63 - 1  # of whole numbers, as tables store them


def wrong_field(instance: Any) -> str | None:
    """Return the name of a field whose value does not fit its annotation, or None.

    Known annotations are str, bool, int, float, None, Any, Literal, Mapping, tuples of any length, dataclasses and
    unions of these.
    """
    hints = _hints(type(instance))  # type: ignore[arg-type]
    wrong = (
        field.name
        for field in fields(instance)
        if not _fits(getattr(instance, field.name), hints[field.name])
    )
    return next(wrong, None)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != float("inf")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
        )
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin is Literal:
        return value in inner
    if inner:  # a union
        return any(_fits(value, kind) for kind in inner)
    return isinstance(value, hint) and (
        not hasattr(hint, "__dataclass_fields__") or wrong_field(value) is None
    )


def not_finite(value: Any) -> str | None:
    """Return where a tree of dicts and lists holds a number that is not finite, as "a: b: 0"; None if nowhere."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        found = ((key, not_finite(item)) for key, item in items)
        return next((f"{key}: {where}".removesuffix(": ") for key, where in found if where is not None), None)
    return "" if isinstance(value, float) and not math.isfinite(value) else None
