"""The rows of a table: methods with options, parts and recipes checked, grids written out."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttdg.adapt import METHODS, checked, defaults
from ttdg.errors import UserError, near_miss
from ttdg.experiment.config import MethodEntry
from ttdg.experiment.fitting import FITTERS
from ttdg.training import Recipe


@dataclass(frozen=True)
class Variant:
    """One row. `options` are those that differ from the default; `recipe` is that of its source model."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def left_out(self) -> dict[str, str]:
        """The options at their defaults, as text."""
        known = defaults(self.method)
        return {name: repr(value) for name, value in known.items() if name not in self.options}


def variants(
    methods: str | Sequence[str | MethodEntry],
    parts: Mapping[str, Mapping[str, Any]],
    recipe: Mapping[str, Any],
) -> list[Variant]:
    """`all` means every method whose parts come with the model or can be fitted."""
    if isinstance(methods, str):
        there = {*FITTERS, *trained_with(recipe)}
        methods = [name for name, method in METHODS.items() if {*method.parts} <= there]
    found = []
    for entry in methods:
        entry = MethodEntry(method=entry) if isinstance(entry, str) else entry
        for point in itertools.product(*([(k, v) for v in values] for k, values in entry.grid.items())):
            found.append(_variant(entry, dict(point), parts, recipe))
    labels = [variant.label for variant in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UserError(f"two rows of a table would be called {twice!r}; give one of them a `name:`")
    return found


def _variant(
    entry: MethodEntry,
    point: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    recipe: Mapping[str, Any],
) -> Variant:
    method = entry.method
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}{near_miss(method, METHODS)}")
    split = {name: name.partition(".")[::2] for name in point}
    own = {**recipe, **{key: point[name] for name, (home, key) in split.items() if home == "recipe"}}
    wanted = [name for name in METHODS[method].parts if name not in trained_with(own)]
    needed = {name: {**parts.get(name, {}), **entry.parts.get(name, {})} for name in wanted}
    options = dict(entry.options)
    for name, (home, key) in split.items():
        if home in needed and key:
            needed[home][key] = point[name]
        elif home != "recipe":
            options[name] = point[name]
    _fittable(method, needed)
    known = defaults(method)
    values = {name: checked(method, name, value) for name, value in options.items()}
    different = {name: value for name, value in values.items() if value != known[name]}
    return Variant(_label(entry, point), method, different, needed, own)


def trained_with(fields: Mapping[str, Any]) -> frozenset[str]:
    """Parts that come with a source model trained so."""
    return frozenset({"prior"} if recipe_of(fields).universe else ())


def recipe_of(fields: Mapping[str, Any], seed: int = 0) -> Recipe:
    """A wrong name or value is an error in words."""
    known = Recipe.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise UserError(f"recipe: unknown key {name!r}{near_miss(name, known)}")
    try:
        return Recipe(**{**fields, "seed": seed})
    except TypeError as error:
        raise UserError(f"recipe: {error}; numbers without quotes, and 1e-3 as 1.0e-3 or 0.001") from None


def _fittable(method: str, needed: Mapping[str, object]) -> None:
    for name in needed:
        if name not in FITTERS:
            raise UserError(
                f"method {method!r} needs the part {name!r}, which neither this recipe nor a fitter makes; "
                "leave the method out, or train a prior with `universe: 0.1` if that is the part"
            )


def _label(entry: MethodEntry, point: Mapping[str, Any]) -> str:
    texts = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    grid = ", ".join(texts)
    return (entry.name or entry.method) + (f" [{grid}]" if grid else "")
