"""ttdg demo."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for data, table, picture and page.")
    ] = Path("demo-out"),
    cases: Annotated[int, typer.Option(min=8, help="Images a hospital.")] = 32,
) -> None:
    """A model trained at four synthetic hospitals meets a fifth: table, picture and page in a minute or two.

    Example: [bold]ttdg demo --out demo-out[/bold]
    """
    from rich.console import Console

    from ttdg.cli.progress import bar
    from ttdg.data.synthetic import SITES
    from ttdg.experiment.demo import SHOWN, run
    from ttdg.experiment.tables import render, summarise

    with bar("scoring", len(SITES) * len(SHOWN)) as progress:
        result = run(out, cases=cases, say=typer.echo, progress=progress)
    title = f"online, batch 8; the model never saw {result.target}"
    Console().print(render(summarise(result.records), title))
    typer.echo(f"picture: {result.picture}\npage:    {result.page}")
