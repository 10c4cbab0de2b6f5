"""ttdg leaderboard: one page over published records."""

from pathlib import Path
from typing import Annotated

import typer


def leaderboard_command(
    records: Annotated[list[Path], typer.Argument(help="Folders that hold packed records, at any depth.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("leaderboard"),
) -> None:
    """Every method of every run, best first, with intervals, harm, and whether the records were verified.

    Example: [bold]ttdg leaderboard docs/records --out docs[/bold]
    """
    from ttdg.report.leaderboard import write_leaderboard

    for path in write_leaderboard(records, out):
        typer.echo(str(path))
