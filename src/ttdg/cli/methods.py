"""ttdg methods: what every method does, as it declares it itself."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

CAPTION = (
    "norm: BatchNorm statistics. reset: the policy it was published with; in an evaluation --stream decides. "
    "fwd/bwd: network passes a batch. parts: fitted at source time. answers: before or after the update (on wide "
    "screens). `ttdg methods NAME` says all of one."
)
WIDE = 140  # columns of a screen


def methods_command(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", show_default=False)] = None,
) -> None:
    """List the methods: what they adapt, what they need, what they cost; with a NAME, one of them in full.

    Example: [bold]ttdg methods tent[/bold]
    """
    from rich.console import Console

    console = Console()
    console.print(methods_table(wide=console.width >= WIDE) if name is None else method_card(name))


def methods_table(wide: bool) -> "Table":
    """All methods; what cannot be read on 80 columns is for wide ones, or for `card`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ttdg.adaptation import METHODS, reconstructions

    caption = " ".join((CAPTION, *(f"{name} is a reconstruction." for name in reconstructions(METHODS))))
    shown = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption, caption_justify="left"
    )
    for column in ("method", "adapts", "norm", "reset", "fwd/bwd", "parts"):
        shown.add_column(column, no_wrap=column in ("method", "reset", "fwd/bwd"), overflow="fold")
    for column in ("answers", "needs", "paper") if wide else ():
        shown.add_column(column, no_wrap=column == "answers", overflow="fold")
    for name, method in METHODS.items():
        passes, parts = f"{method.forwards}/{method.backwards}", "\n".join(method.parts) or "-"
        more = (prediction_text(name), ", ".join(method.needs) or "-", method.paper) if wide else ()
        shown.add_row(name, method.adapts, method.norm, method.reset, passes, parts, *more)
    return shown


def method_card(name: str) -> "Table":
    """One method in full, with its options and where their values come from."""
    from rich.table import Table

    from ttdg.adaptation import METHODS, defaults
    from ttdg.errors import UserError, suggestion

    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{suggestion(name, METHODS)}")
    method = METHODS[name]
    rows = {
        name: method.summary,
        "paper": method.paper,
        "adapts": method.adapts,
        "BatchNorm": method.norm,
        "reset": method.reset
        + (", keeps what it learns from batch to batch" if method.memory else ", no memory"),
        "answers": "without an update"
        if method.adapts == "nothing"
        else f"{prediction_text(name)} the update",
        "passes": f"{method.forwards} forward, {method.backwards} backward a batch, with default options",
        "needs": requirements_text(name) or "nothing but a network",
        "options": "\n".join(option_text(name, *each) for each in defaults(name).items()) or "none",
        "origin": method.origin,
        "tuned over": "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in grid_text(name).items())
        or "nothing",
        "in full": module_text(name),
    }
    shown = Table(show_header=False, box=None)
    for label, value in rows.items():
        shown.add_row(f"[bold]{label}[/bold]", value)
    return shown


def option_text(method: str, name: str, value: object) -> str:
    """Its default, and what else it may be."""
    from ttdg.adaptation import allowed

    shown = f"{value:.4g}" if isinstance(value, float) else repr(value) if value == "" else str(value)
    other = allowed(method, name)
    return f"{name} = {shown}{f'  ({other})' if other else ''}"


def prediction_text(name: str) -> str:
    from ttdg.adaptation import METHODS

    return "-" if METHODS[name].adapts == "nothing" else METHODS[name].predict


def requirements_text(name: str) -> str:
    """Of the network, and parts from source time with what makes each."""
    from ttdg.adaptation import METHODS
    from ttdg.checkpoints import how_to_make

    method = METHODS[name]
    return ", ".join((*method.needs, *(f"part {part} ({how_to_make(part)})" for part in method.parts)))


def grid_text(name: str) -> dict[str, tuple[object, ...]]:
    from ttdg.evaluation.tuning import grid_of

    return grid_of(name)


def module_text(name: str) -> str:
    """What its file says at the top: citation and decisions."""
    import inspect

    from rich.markup import escape

    from ttdg.adaptation import METHODS

    text = inspect.getdoc(inspect.getmodule(METHODS[name].build)) or ""
    return escape("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")))
