"""Which methods a command is to run: named one by one, with commas, or all that this model can."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from ttdg.cli.options import check_methods
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.types import Part

ALL = "all"


def choose_methods(asked: Sequence[str], parts: "Mapping[str, Part]") -> list[str]:
    """Each method once, in the order first named; what `all` has to leave out is said, with how to fit it."""
    from ttdg.adaptation import METHODS

    names = listed(asked)
    if not names:
        raise UserError(f"--method names no method; `ttdg methods` lists them, and `{ALL}` is every one")
    able = [name for name, method in METHODS.items() if set(method.parts) <= set(parts)]
    methods = once(method for name in names for method in (able if name == ALL else [name]))
    check_methods(methods, parts)
    if ALL in names and (left := [name for name in METHODS if name not in able]):
        missing = once(part for name in left for part in METHODS[name].parts if part not in parts)
        typer.echo(f"{ALL}: without {', '.join(left)}, whose parts are missing; {fitting(missing)}", err=True)
    return methods


def listed(given: Iterable[str]) -> list[str]:
    """`["tent, sar", "norm"]` → tent, sar, norm."""
    return once(name.strip() for item in given for name in item.split(",") if name.strip())


def once(names: Iterable[str]) -> list[str]:
    """Each name where it first stands."""
    return list(dict.fromkeys(names))


def fitting(parts: Sequence[str]) -> str:
    """How to make these parts: those with a command of their own one by one, the others with one training command."""
    from ttdg.checkpoints import COMMANDS, how_to_make

    alone = [f"{part}: {how_to_make(part)}" for part in parts if part in COMMANDS]
    together = ",".join(part for part in parts if part not in COMMANDS)
    return "; ".join([*alone, how_to_make(together)] if together else alone)
