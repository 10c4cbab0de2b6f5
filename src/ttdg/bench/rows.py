"""The rows of a table: methods with options, parts and recipes checked, grids written out."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ttdg.adaptation import METHODS, checked, defaults
from ttdg.bench.config import MethodEntry
from ttdg.bench.fitting import FITTERS, check_part_settings
from ttdg.errors import UserError, suggestion
from ttdg.evaluation.tuning import configurations
from ttdg.training import Recipe


@dataclass(frozen=True)
class Variant:
    """One row. `options` are those that differ from the default; `recipe` is that of its source model.

    Where there are `configurations`, the row's options are yet to be chosen among them.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    configurations: tuple[Mapping[str, Any], ...] = ()

    def left_out(self) -> dict[str, str]:
        """The options at their defaults, as text."""
        said = {*self.options, *(name for point in self.configurations for name in point)}
        return {name: repr(value) for name, value in defaults(self.method).items() if name not in said}


def variants(
    methods: str | Sequence[str | MethodEntry],
    parts: Mapping[str, Mapping[str, Any]],
    recipe: Mapping[str, Any],
    tuned: bool = False,
) -> list[Variant]:
    """`all`, alone or in a list, means every method whose parts come with the model or can be fitted.

    With `tuned`, a row that says nothing of its options gets them from a search, where its method has a grid.
    """
    for name, settings in parts.items():
        check_part_settings(name, settings)
    there = {*FITTERS, *trained_with(recipe)}
    every = [name for name, method in METHODS.items() if {*method.parts} <= there]
    found = []
    for entry in [m for name in ([methods] if isinstance(methods, str) else methods)
                  for m in (every if name == "all" else [name])]:  # fmt: skip
        entry = MethodEntry(method=entry) if isinstance(entry, str) else entry
        for point in itertools.product(*([(k, v) for v in values] for k, values in entry.grid.items())):
            variant = _variant(entry, dict(point), parts, recipe)
            if tuned and not entry.grid and (entry.tuned or not entry.options):
                variant = replace(variant, configurations=_searched(entry.method, variant.options))
            found.append(variant)
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
        raise UserError(f"unknown method {method!r}{suggestion(method, METHODS)}")
    split = {name: name.partition(".")[::2] for name in point}
    own = {**recipe, **{key: point[name] for name, (home, key) in split.items() if home == "recipe"}}
    wanted = [name for name in METHODS[method].parts if name not in trained_with(own)]
    needed = {name: {**parts.get(name, {}), **entry.parts.get(name, {})} for name in wanted}
    options = dict(entry.options)
    _used(method, "parts", entry.parts, needed)
    _used(method, "grid", [home for home, key in split.values() if key], [*needed, "recipe"])
    for name, (home, key) in split.items():
        if home in needed and key:
            needed[home][key] = point[name]
        elif home != "recipe":
            options[name] = point[name]
    _fittable(method, needed)
    for name, settings in needed.items():
        check_part_settings(name, settings)
    known = defaults(method)
    values = {name: checked(method, name, value) for name, value in options.items()}
    different = {name: value for name, value in values.items() if value != known[name]}
    return Variant(_label(entry, point), method, different, needed, own)


def _searched(method: str, said: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """What a search would try beside the options that are said; nothing where there is nothing to choose."""
    points = [{**point, **said} for point in configurations(method)]
    different = tuple(point for number, point in enumerate(points) if point not in points[:number])
    return different if len(different) > 1 else ()


def trained_with(fields: Mapping[str, Any]) -> frozenset[str]:
    """Parts that come with a source model trained so."""
    return frozenset({"prior"} if recipe_of(fields).universe else ())


def recipe_of(fields: Mapping[str, Any], seed: int = 0) -> Recipe:
    """A wrong name or value is an error in words."""
    known = Recipe.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise UserError(f"recipe: unknown key {name!r}{suggestion(name, known)}")
    try:
        return Recipe(**{**fields, "seed": seed})
    except TypeError as error:
        raise UserError(f"recipe: {error}; numbers without quotes, and 1e-3 as 1.0e-3 or 0.001") from None


def _used(method: str, where: str, names: Iterable[str], known: Collection[str]) -> None:
    """Settings of a part that the row would not fit are a mistake: they would change nothing."""
    for name in names:
        if name not in known:
            hint = suggestion(name, known) if known else ""
            raise UserError(
                f"`{where}` of method {method!r} sets a part {name!r}, which is not fitted for it{hint}; "
                "mend the name or take it out"
            )


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
