"""The command `ttdg fit`, which fits parts to a network from outside this project."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.models.fit import AgainOption, summary_of
from ttdg.cli.options import (
    BenchmarkOption,
    DataOption,
    DeviceOption,
    WorkersOption,
    choose_device,
    choose_sites,
    open_data,
    output_folder,
    parse_settings,
)
from ttdg.cli.progress import progress_bar
from ttdg.errors import UserError


def fit_command(
    network: Annotated[
        str, typer.Option(help="Import path of the network, or of what makes it: package.module:name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the parts.", callback=output_folder)],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="State dict of the network: .safetensors, or a pickle of tensors only.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="An argument of the import path, e.g. [bold]--set out_channels=3[/bold].",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    sources: Annotated[
        str | None,
        typer.Option(help="Source sites, separated by commas; default: all.", show_default=False),
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            help="Modules whose outputs are features, separated by commas; default: three are chosen.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="Output with the logits: key of a dict or position in a tuple.", show_default=False
        ),
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(
            help="softmax (one channel per label) or sigmoid (one channel per region).", show_default=False
        ),
    ] = None,
    channels: Annotated[
        int, typer.Option(min=1, max=3, help="Channels of the network's images: 1 or 3.")
    ] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the prior.")] = 600,
    hospitals: Annotated[
        int, typer.Option(min=0, help="Simulated hospitals that the method universe learns.")
    ] = 8,
    learning_steps: Annotated[int, typer.Option(min=1, help="Steps at each simulated hospital.")] = 100,
    folder_steps: Annotated[int, typer.Option(min=1, help="Steps of the method universe on a folder.")] = 300,
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="Simulated shifts per source site; default: 3 or more.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fit.")] = 0,
    again: AgainOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Fit the prior and the judge to a network of yours, from labelled source images.

    The parts serve [bold]ttdg.adapt(network, "universe", parts="parts")[/bold] in Python, with the weights that they
    were fitted to. A pickle of anything but tensors is refused.

    Example: [bold]ttdg fit --network my_project.networks:make --weights unet.safetensors --activation softmax
    -d ~/data/polyp -b polyp -o parts[/bold]
    """
    from ttdg.data import load_sources
    from ttdg.foreign import fit_to_sources, load_network, save_parts

    if activation not in (None, "softmax", "sigmoid"):
        raise UserError(f"--activation is softmax or sigmoid, not {activation!r}")
    if not again:
        refuse_existing_parts(out)
    if weights is None:
        typer.echo(
            f"no --weights: the parts are fitted to the weights that {network} makes, and serve no others",
            err=True,
        )
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    made = load_network(network, weights, parse_settings(settings)).to(choose_device(device))
    described, sites = open_data(data, benchmark)
    chosen = choose_sites(sites, sources.split(",") if sources else list(sites))
    with progress_bar("reading", sum(len(site.cases) for site in chosen.values())) as progress:
        given = load_sources(chosen, described, workers, progress)
    with progress_bar("fitting") as progress:
        parts = fit_to_sources(
            made, given, described, channels=channels, taps=taps.split(",") if taps else None,
            output=int(output) if output is not None and output.isdigit() else output, activation=activation,  # type: ignore[arg-type]
            steps=steps, seed=seed, progress=progress, hospitals=hospitals, learning_steps=learning_steps,
            folder_steps=folder_steps, draws=draws,
        )  # fmt: skip
    save_parts(out, parts, made)
    images = sum(len(arrays.cases) for arrays in given.held_out.values())
    typer.echo(summary_of(parts["judge"], images))
    typer.echo(f"features of {', '.join(parts['prior'].settings['levels'])}; parts written to {out}")


def refuse_existing_parts(folder: Path) -> None:
    """Raise `UserError` if a folder has one of the parts that `ttdg fit` writes."""
    from ttdg.checkpoints import FOREIGN

    existing = [name for name in FOREIGN if (folder / f"{name}.safetensors").exists()]
    if existing:
        raise UserError(
            f"{folder} has the parts {', '.join(existing)} already; use --again to replace them, or name another folder"
        )
