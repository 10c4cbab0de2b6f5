"""ttdg verify: run sampled rows of a run again."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import DataOption, DeviceOption, choose_device


def verify_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of packed records.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to draw; their scorings run again.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    data: DataOption = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Folder of source models; missing ones are trained.", show_default=False),
    ] = None,
    encoder_weights: Annotated[
        Path | None, typer.Option(help="For models that must be trained.", show_default=False)
    ] = None,
    tolerance: Annotated[float, typer.Option(help="On a GPU, of a score between 0 and 1.")] = 0.02,
    device: DeviceOption = "auto",
) -> None:
    """Run sampled rows again and say whether they agree: bit for bit (CPU) or within the tolerance (GPU).

    Exit status 1 where they do not.

    Example: [bold]ttdg verify runs/smoke --rows 10[/bold]
    """
    from ttdg.bench.verify import verify as check

    weights = str(encoder_weights) if encoder_weights else None
    result = check(
        run, rows, seed, data=data, models=models, encoder_weights=weights, device=choose_device(device),
        tolerance=tolerance, progress=lambda line: typer.echo(line, err=True),
    )  # fmt: skip
    typer.echo(result.in_words())
    raise typer.Exit(0 if result.agrees else 1)
