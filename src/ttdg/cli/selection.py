"""Choosing the methods that a command runs: named one by one, separated by commas, or `all`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from ttdg.cli.options import check_methods
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.types import Part

ALL = "all"


def choose_methods(
    asked: Sequence[str], parts: "Mapping[str, Part]", task: str = "segmentation"
) -> list[str]:
    """Return each requested method once, in the order of the request.

    `all` stands for every method that applies to the task, whose parts the model has and that can use its universe. A
    message names the others, and the commands that fit their parts.
    """
    from ttdg.adaptation import METHODS, applies, check_applies, needs_tissues
    from ttdg.prior.graph_prior import LITERAL

    names = unique_names(name.strip() for item in asked for name in item.split(",") if name.strip())
    if not names:
        raise UserError(f"--method names no method; `ttdg methods` lists them, and `{ALL}` selects all")
    literal = "prior" in parts and LITERAL in parts["prior"].settings
    unfit = {name for name in METHODS if literal and needs_tissues(name)}
    known = [name for name in METHODS if applies(name, task)]
    available = [name for name in known if set(METHODS[name].parts) <= set(parts) and name not in unfit]
    methods = unique_names(method for name in names for method in (available if name == ALL else [name]))
    for name in methods:
        if name in METHODS:
            check_applies(name, task)
    check_methods(methods, parts)
    if ALL in names and unfit:
        typer.echo(f"{ALL}: without {', '.join(sorted(unfit))}, which need a universe of tissues", err=True)
    if ALL in names and (omitted := [name for name in known if name not in {*available, *unfit}]):
        missing = unique_names(part for name in omitted for part in METHODS[name].parts if part not in parts)
        typer.echo(
            f"{ALL}: without {', '.join(omitted)}, whose parts are missing; {_fitting_commands(missing)}",
            err=True,
        )
    return methods


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names without duplicates, in the order of their first occurrence."""
    return list(dict.fromkeys(names))


def _fitting_commands(parts: Sequence[str]) -> str:
    """Return the commands that fit these parts; one training command fits all that have none of their own."""
    from ttdg.checkpoints import COMMANDS, how_to_make

    alone = [f"{part}: {how_to_make(part)}" for part in parts if part in COMMANDS]
    together = ",".join(part for part in parts if part not in COMMANDS)
    return "; ".join([*alone, how_to_make(together)] if together else alone)
