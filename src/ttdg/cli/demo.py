"""The command `ttdg demo`."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import output_folder


def demo_command(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for data, table, picture and page.", callback=output_folder),
    ] = Path("demo-out"),
    cases: Annotated[int, typer.Option(min=8, help="Images of each hospital.")] = 32,
) -> None:
    """Test a model of four synthetic hospitals at a fifth: table, picture and page in a minute or two.

    Example: [bold]ttdg demo --out demo-out[/bold]
    """
    from rich.console import Console

    from ttdg.cli.progress import progress_bar
    from ttdg.data.synthetic.cases import SITES
    from ttdg.report.demo import SHOWN, run_demo
    from ttdg.report.terminal import scores_table, summarise

    with progress_bar("scoring", len(SITES) * len(SHOWN)) as progress:
        result = run_demo(out, cases=cases, say=typer.echo, progress=progress)
    title = (
        f"batch 8; universe learns each folder before it answers, the others adapt online; "
        f"the model was not trained on {result.target}"
    )
    Console().print(scores_table(summarise(result.evaluations), title))
    typer.echo(f"{result.conclusion.sentence}")
    typer.echo(f"picture: {result.picture}\npage:    {result.page}")
    typer.echo(
        f"\nsee {result.target} learned, image by image, in a browser:\n    {_this_command()} serve --images "
        f"{result.data}\nand choose {result.target} there"
    )


def _this_command() -> str:
    """Return how the user can call `ttdg` again."""
    return "ttdg" if shutil.which("ttdg") else os.path.relpath(sys.argv[0])
