"""The command `ttdg leaderboard`: one page for several published runs."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import output_folder


def leaderboard_command(
    records: Annotated[list[Path], typer.Argument(help="Folders with packed records, at any depth.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the page.", callback=output_folder)
    ] = Path("leaderboard"),
) -> None:
    """Rank all methods of all runs, with intervals, harm, and whether the records were verified.

    Example: [bold]ttdg leaderboard docs/records --out docs[/bold]
    """
    from ttdg.report.leaderboard import write_leaderboard

    for path in write_leaderboard(records, out):
        typer.echo(str(path))
