"""The command `ttdg methods`: a table of all methods, or one method with its options."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from ttdg.adaptation import Method

CAPTION = (
    "norm: BatchNorm statistics. reset: policy of the publication; in an evaluation --stream decides. "
    "fwd/bwd: forward and backward passes for each batch. parts: fitted at source time. predicts: before or after the "
    "update (wide screens only). `ttdg methods NAME` shows one method and its options."
)
WIDE = 140  # columns of a terminal from which the table has all columns


def methods_command(
    name: Annotated[
        str | None, typer.Argument(help="Show this method and its options.", show_default=False)
    ] = None,
) -> None:
    """List the methods: what they adapt, need and cost. With a NAME, show one method and its options.

    Example: [bold]ttdg methods tent[/bold]
    """
    from rich.console import Console

    console = Console()
    console.print(methods_table(wide=console.width >= WIDE) if name is None else method_card(name))


def methods_table(wide: bool) -> "Table":
    """Table of all methods. Without `wide`, it leaves out the columns that do not fit on 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ttdg.adaptation import METHODS, reconstructions

    caption = " ".join((CAPTION, *(f"{name} is a reconstruction." for name in reconstructions(METHODS))))
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption, caption_justify="left"
    )
    for column in ("method", "adapts", "norm", "reset", "fwd/bwd", "parts"):
        table.add_column(column, no_wrap=column in ("method", "reset", "fwd/bwd"), overflow="fold")
    for column in ("predicts", "needs", "paper") if wide else ():
        table.add_column(column, no_wrap=column == "predicts", overflow="fold")
    for name, method in METHODS.items():
        passes, parts = f"{method.forwards}/{method.backwards}", "\n".join(method.parts) or "-"
        more = (_predicts(method), ", ".join(method.needs) or "-", method.paper) if wide else ()
        table.add_row(name, method.adapts, method.norm, method.reset, passes, parts, *more)
    return table


def method_card(name: str) -> "Table":
    """One method: what it declares, its options, and the docstring of its file."""
    from rich.table import Table

    from ttdg.adaptation import METHODS
    from ttdg.errors import UserError, suggestion
    from ttdg.evaluation.search_space import grid_text, published_text

    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{suggestion(name, METHODS)}")
    method = METHODS[name]
    rows = {
        name: method.summary,
        "paper": method.paper,
        "adapts": method.adapts,
        "BatchNorm": method.norm,
        "reset": f"{method.reset}, {'keeps its state from batch to batch' if method.memory else 'no memory'}",
        "predicts": "without an update" if method.adapts == "nothing" else f"{method.predict} the update",
        "passes": f"{method.forwards} forward, {method.backwards} backward for each batch, with default options",
        "needs": _requirements(method) or "any network",
        "access": method.access + (", fitted post hoc" if method.post_hoc else ""),
        "options": _options(name),
        "origin": method.origin,
        "published": published_text(name),
        "tuned over": grid_text(name),
        "decisions": _module_text(method),
    }
    table = Table(show_header=False, box=None)
    for label, value in rows.items():
        table.add_row(f"[bold]{label}[/bold]", value)
    return table


def _options(name: str) -> "Group | str":
    """For each option: name, default and allowed values; then what it does; then where the default comes from."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from ttdg.adaptation import METHODS, allowed, defaults

    lines: list[Text | Padding] = []
    for option, value in defaults(name).items():
        documentation, values = METHODS[name].options[option], allowed(name, option)
        default = f"{value:.4g}" if isinstance(value, float) else repr(value) if value == "" else str(value)
        lines.append(Text(f"{option} = {default}{f'  ({values})' if values else ''}"))
        lines += [
            Padding(Text(text), (0, 0, 0, 2))
            for text in (documentation.text, f"default from {documentation.origin}")
        ]
    return Group(*lines) if lines else "none"


def _predicts(method: "Method") -> str:
    return "-" if method.adapts == "nothing" else method.predict


def _requirements(method: "Method") -> str:
    """Requirements on the network, and the parts with the commands that fit them."""
    from ttdg.checkpoints import how_to_make

    return ", ".join((*method.needs, *(f"part {part} ({how_to_make(part)})" for part in method.parts)))


def _module_text(method: "Method") -> str:
    """The docstring of the method's file: citation and decisions, one line for each paragraph."""
    import inspect

    from rich.markup import escape

    text = inspect.getdoc(inspect.getmodule(method.build)) or ""
    return escape("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")))
