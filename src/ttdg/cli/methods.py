"""ttdg methods: what every method does, as it declares it itself."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", show_default=False)] = None,
) -> None:
    """List the methods: what they adapt, what they need, what they cost; with a NAME, one of them in full.

    Example: [bold]ttdg methods tent[/bold]
    """
    from rich.console import Console

    Console().print(table() if name is None else card(name))


def table() -> "Table":
    """All methods; fwd/bwd are network passes a batch with default options."""
    from rich.table import Table

    from ttdg.adapt import METHODS

    shown = Table(
        caption="fwd/bwd: network passes a batch. `ttdg methods NAME` says all of one.",
        caption_justify="left",
    )
    for column in ("method", "adapts", "norm", "reset", "predict", "fwd/bwd", "needs", "paper"):
        shown.add_column(column, overflow="fold")
    for name, method in METHODS.items():
        cost = f"{method.forwards}/{method.backwards}"
        shown.add_row(
            name, method.adapts, method.norm, method.reset, when(name), cost, needs(name) or "-", method.paper
        )
    return shown


def card(name: str) -> "Table":
    """One method in full, with its options and where their values come from."""
    from rich.table import Table

    from ttdg.adapt import METHODS, defaults
    from ttdg.errors import UserError, near_miss

    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{near_miss(name, METHODS)}")
    method, options = METHODS[name], defaults(name)
    rows = {
        name: method.summary,
        "paper": method.paper,
        "adapts": method.adapts,
        "BatchNorm": method.norm,
        "reset": method.reset
        + (", keeps what it learns from batch to batch" if method.memory else ", no memory"),
        "answers": "without an update" if method.adapts == "nothing" else f"{when(name)} the update",
        "passes": f"{method.forwards} forward, {method.backwards} backward a batch, with default options",
        "needs": needs(name, how=True) or "nothing but a network",
        "options": ", ".join(f"{option} = {value}" for option, value in options.items()) or "none",
        "origin": method.origin,
        "tuned over": "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in grid(name).items()) or "nothing",
        "in full": about(name),
    }
    shown = Table(show_header=False, box=None)
    for label, value in rows.items():
        shown.add_row(f"[bold]{label}[/bold]", value)
    return shown


def when(name: str) -> str:
    from ttdg.adapt import METHODS

    return "-" if METHODS[name].adapts == "nothing" else METHODS[name].predict


def needs(name: str, how: bool = False) -> str:
    """Of the network, and parts from source time; with `how`, the command that makes each."""
    from ttdg.adapt import METHODS
    from ttdg.parts import MAKES

    method = METHODS[name]
    made = {
        part: f" (`{MAKES.get(part, f'ttdg train --with {part}')}`)" if how else "" for part in method.parts
    }
    return ", ".join((*method.needs, *(f"part {part}{command}" for part, command in made.items())))


def grid(name: str) -> dict[str, tuple[object, ...]]:
    from ttdg.experiment.tune import grid_of

    return grid_of(name)


def about(name: str) -> str:
    """What its file says at the top: citation and decisions."""
    import inspect

    from rich.markup import escape

    from ttdg.adapt import METHODS

    text = inspect.getdoc(inspect.getmodule(METHODS[name].build)) or ""
    return escape("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")))
