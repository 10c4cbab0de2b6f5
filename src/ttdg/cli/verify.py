"""The command `ttdg verify`: run sampled rows of a run again and compare the values."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import DataOption, DeviceOption


def verify_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of packed records.")],
    rows: Annotated[
        int, typer.Option(min=1, help="Number of rows to sample; their scorings run again.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    data: DataOption = None,
    models: Annotated[
        Path | None,
        typer.Option(
            help="Folder of source models; missing models are trained into it. Default RUN/models.",
            show_default=False,
        ),
    ] = None,
    encoder_weights: Annotated[
        Path | None, typer.Option(help="ImageNet weights for models that are trained.", show_default=False)
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="On a GPU: accepted difference of a score between 0 and 1.")
    ] = 0.02,
    device: DeviceOption = "auto",
) -> None:
    """Run sampled rows again and compare: bit for bit (CPU) or within the tolerance (GPU, other versions).

    The exit status is 1 if the rows do not agree.

    Example: [bold]ttdg verify runs/smoke --rows 10[/bold]
    """
    from ttdg.bench.verification.rerun import verify_run
    from ttdg.networks.devices import resolve_device

    weights = str(encoder_weights) if encoder_weights else None
    result = verify_run(
        run, rows, seed, data=data, models=models, encoder_weights=weights, device=resolve_device(device),
        tolerance=tolerance, progress=lambda line: typer.echo(line, err=True),
    )  # fmt: skip
    typer.echo(result.in_words())
    raise typer.Exit(0 if result.agrees else 1)
