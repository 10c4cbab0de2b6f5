"""Table rows: methods with validated options, parts and recipes; grids are expanded."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ttdg.adaptation import (
    METHODS,
    applies,
    check_applies,
    checked,
    defaults,
    needs_tissues,
)
from ttdg.bench.config import MethodEntry
from ttdg.bench.fitting import FITTERS, check_fittable, check_part_settings, parts_from_training
from ttdg.bench.variants import MethodVariant, at_the_gate, candidates, on_axes
from ttdg.checkpoints import file_hash
from ttdg.errors import UserError, suggestion
from ttdg.evaluation.search_space import configurations, published_options
from ttdg.training import Recipe

GROUPS = ("all", "continual")  # names that stand for several methods


def method_variants(
    methods: str | Sequence[str | MethodEntry],
    parts: Mapping[str, Mapping[str, Any]],
    recipe: Mapping[str, Any],
    tuned: bool = False,
    benchmark: str = "",
    views: Sequence[str] = ("plain",),
    statistics: Sequence[str] = ("own",),
    task: str = "segmentation",
    gate: Sequence[bool] = (False,),
) -> list[MethodVariant]:
    """Expand the `methods` of an experiment into table rows.

    `all`, alone or in a list, stands for every method that applies to the task and whose parts are trained with the
    model or can be fitted, and `continual` for those of them that were published with a stream that is never reset.
    With `tuned`, a row without options gets candidate configurations if its method has a grid to search. `benchmark`
    matters for methods that are published with other options there.
    """
    for name, settings in parts.items():
        check_part_settings(name, settings)
    rows = []
    for entry in [m for name in ([methods] if isinstance(methods, str) else methods)
                  for m in _entries(name, recipe, tuned, benchmark, task)]:  # fmt: skip
        if entry.method in METHODS:
            check_applies(entry.method, task)
        for point in itertools.product(*([(k, v) for v in values] for k, values in entry.grid.items())):
            variant = _variant(entry, dict(point), parts, recipe, benchmark)
            if tuned and not entry.grid and (entry.tuned or not entry.options):
                variant = replace(variant, configurations=candidates(entry.method, variant.options))
            axes = on_axes(variant, entry, statistics, views)
            rows += [row for each in axes for row in at_the_gate(each, entry, gate, parts)]
    labels = [variant.label for variant in rows]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UserError(f"two rows of a table have the name {twice!r}; give one of them another `name:`")
    return rows


def _entries(
    row: str | MethodEntry, recipe: Mapping[str, Any], tuned: bool, benchmark: str, task: str
) -> list[MethodEntry]:
    """Return the entries of a name, of a group of methods, or of a group as published.

    The latter has a row for every method whose published setting differs from its defaults or, in a tuned experiment,
    may differ from the tuned one.
    """
    if isinstance(row, str):
        return [MethodEntry(method=name) for name in (_group(row, recipe, task) if row in GROUPS else [row])]
    if row.method not in GROUPS or row.options != "published":
        return [row]
    settings = {name: published_options(name, benchmark) for name in _group(row.method, recipe, task)}
    return [
        row.model_copy(update={"method": name})
        for name, setting in settings.items()
        if setting or (setting is not None and tuned and len(configurations(name)) > 1)
    ]


def _group(group: str, recipe: Mapping[str, Any], task: str) -> list[str]:
    """Return the methods of a group that apply to the task, whose parts are made, and that can use the universe."""
    own = recipe_of_job(recipe)
    available, tissues = {*FITTERS, *parts_from_training(own)}, own.get("universe_loss") != "literal"
    return [
        name
        for name, method in METHODS.items()
        if {*method.parts} <= available
        and (tissues or not needs_tissues(name))
        and applies(name, task)
        and group in ("all", method.reset)
    ]


def _variant(
    entry: MethodEntry,
    point: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    recipe: Mapping[str, Any],
    benchmark: str,
) -> MethodVariant:
    method = entry.method
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}{suggestion(method, METHODS)}")
    split = {name: name.partition(".")[::2] for name in point}
    own_recipe = recipe_of_job(
        {**recipe, **{key: point[name] for name, (group, key) in split.items() if group == "recipe"}}
    )
    if own_recipe.get("universe_loss") == "literal" and needs_tissues(method):
        raise UserError(
            f"method {method!r} needs a universe whose points belong to tissues, and `universe_loss: literal` trains "
            "one without; add `recipe.universe_loss: [repaired]` to its `grid`, or remove the method"
        )
    known = defaults(method)
    to_fit = [name for name in METHODS[method].parts if name not in parts_from_training(own_recipe)]
    needed = {name: {**parts.get(name, {}), **entry.parts.get(name, {})} for name in to_fit}
    options = _given_options(entry, benchmark)
    _check_used(method, "parts", entry.parts, needed)
    _check_used(method, "grid", [group for group, key in split.values() if key], [*needed, "recipe"])
    for name, (group, key) in split.items():
        if group in needed and key:
            needed[group][key] = point[name]
        elif group != "recipe":
            options[name] = point[name]
    check_fittable(method, needed)
    for name, settings in needed.items():
        check_part_settings(name, settings)
    values = {name: checked(method, name, value) for name, value in options.items()}
    different = {name: value for name, value in values.items() if value != known[name]}
    return MethodVariant(_label(entry, point), method, different, needed, own_recipe)


def _given_options(entry: MethodEntry, benchmark: str) -> dict[str, Any]:
    if entry.options != "published":
        return dict(entry.options)
    setting = published_options(entry.method, benchmark)
    if setting is None:
        raise UserError(f"no setting of method {entry.method!r} is published; name its options instead")
    return setting


def recipe_of_job(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a recipe; `encoder_weights` is the hash of the file.

    An unknown field or a wrong value raises a UserError.
    """
    known = Recipe.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise UserError(f"recipe: unknown key {name!r}{suggestion(name, known)}")
    try:
        recipe = Recipe(**fields).to_dict()
    except TypeError as error:
        raise UserError(
            f"recipe: {error}; write numbers without quotes, and 1e-3 as 1.0e-3 or 0.001"
        ) from None
    weights = fields.get("encoder_weights")
    return recipe | {"encoder_weights": _hash(weights) if weights else None}


@lru_cache(4)
def _hash(path: str) -> str:
    return file_hash(Path(path))


def _check_used(method: str, where: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise a UserError for settings of a part that is not fitted for the row, because they have no effect."""
    for name in names:
        if name not in known:
            hint = suggestion(name, known) if known else ""
            raise UserError(
                f"`{where}` of method {method!r} sets a part {name!r}, which is not fitted for it{hint}; "
                "correct the name or remove it"
            )


def _label(entry: MethodEntry, point: Mapping[str, Any]) -> str:
    texts = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    grid = ", ".join(texts)
    name = f"{entry.method}, as published" if entry.options == "published" else entry.method
    return (entry.name or name) + (f" [{grid}]" if grid else "")
