"""The command `ttdg prior carry`."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import (
    BenchmarkOption,
    DeviceOption,
    SetOption,
    WorkersOption,
    choose_device,
    choose_sites,
    open_data,
    output_folder,
    parse_settings,
)


def carry_command(
    model: Annotated[
        str, typer.Argument(help="Checkpoint folder with a prior and a judge, or [bold]demo[/bold].")
    ],
    data: Annotated[Path, typer.Argument(help="Benchmark folder; masks are used if there are any.")],
    site: Annotated[str, typer.Option("--site", help="The site.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for carried.png.", callback=output_folder)],
    benchmark: BenchmarkOption = None,
    settings: SetOption = None,
    images: Annotated[int, typer.Option(min=1, help="Images in the figure.")] = 4,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Draw the labels that sure images of a site carry to unsure ones along the matching, as `universe` does.

    A row shows the image, the truth, the prediction of the unadapted network, and the carried label. The rows are those
    less sure images in which the most pixels change. `--set carrier=neighbours` and `--set carrier=pairwise` draw the
    controls.

    Example: [bold]ttdg prior carry demo demo-out/data --site summit -o carried[/bold]
    """
    from ttdg.checkpoints import load
    from ttdg.data import load_arrays
    from ttdg.evaluation.site import benchmark_for_model
    from ttdg.report.figures.carried import carry_over_site
    from ttdg.report.figures.panels import draw_panels

    loaded = load(model, choose_device(device))
    described, sites = open_data(data, benchmark)
    cases = choose_sites(sites, [site])[site].cases
    arrays = load_arrays(cases, benchmark_for_model(loaded.card, described), workers)
    found = carry_over_site(loaded, arrays, parse_settings(settings))
    if found.dice:
        scores = ", ".join(f"{name} {100 * value:.1f}" for name, value in found.mean_dice().items())
        typer.echo(f"mean Dice over the {int(found.unsure.sum())} less sure images: {scores}")
    panels = [found.panel(row) for row in found.most_changed(images)]
    typer.echo(f"{draw_panels(out / 'carried.png', panels, loaded.card.benchmark.labels)} written")
