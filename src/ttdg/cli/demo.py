"""ttdg demo."""

from pathlib import Path
from typing import Annotated

import typer


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for data, table, picture and page.")
    ] = Path("demo-out"),
    cases: Annotated[int, typer.Option(min=8, help="Images a hospital.")] = 32,
) -> None:
    """A model trained at four synthetic hospitals meets a fifth: table, picture and page in a minute or two.

    Example: [bold]ttdg demo --out demo-out[/bold]
    """
    from rich.console import Console

    from ttdg.cli.progress import progress_bar
    from ttdg.data.synthetic.cases import SITES
    from ttdg.report.demo import SHOWN, run_demo
    from ttdg.report.terminal import scores_table, summarise

    with progress_bar("scoring", len(SITES) * len(SHOWN)) as progress:
        result = run_demo(out, cases=cases, say=typer.echo, progress=progress)
    title = f"online, batch 8; the model never saw {result.target}"
    Console().print(scores_table(summarise(result.records), title))
    typer.echo(f"picture: {result.picture}\npage:    {result.page}")
