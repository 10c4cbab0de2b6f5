"""The commands `ttdg data check`, `ttdg data synth` and `ttdg data pack`."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import BenchmarkOption, WorkersOption, open_data, output_folder

app = typer.Typer(no_args_is_help=True, help="Check, draw and pack benchmark folders.")


@app.command("check")
def check_command(
    folder: Annotated[
        Path, typer.Argument(help="Benchmark folder with SITE/images and SITE/masks, or SITE/CLASS.")
    ],
    benchmark: BenchmarkOption = None,
    workers: WorkersOption = None,
) -> None:
    """Decode every file of a benchmark and print one table: sites, cases, sizes, labels, problems.

    Example: [bold]ttdg data check ~/data/polyp --benchmark polyp[/bold]
    """
    from rich.console import Console

    from ttdg.data import check_benchmark, check_table, load_benchmark

    with Console(stderr=True).status(f"reading {folder}"):
        report = check_benchmark(folder, load_benchmark(benchmark, folder), workers=workers)
    Console().print(check_table(report))
    raise typer.Exit(0 if report.ok else 1)


@app.command("synth")
def synth_command(
    out: Annotated[Path, typer.Argument(help="Folder to write.", callback=output_folder)],
    variant: Annotated[
        str, typer.Option(help="fundus, polyp, prostate (volumes), or shapes (classes).")
    ] = "fundus",
    cases: Annotated[int, typer.Option(min=1, help="Images of each site, or volumes.")] = 100,
    size: Annotated[
        int, typer.Option(min=32, help="Side of the images, and of the network's input, in pixels.")
    ] = 128,
    seed: int = 0,
) -> None:
    """Draw the five synthetic hospitals as a benchmark folder.

    Example: [bold]ttdg data synth hospitals --variant polyp --cases 50[/bold]
    """
    from ttdg.cli.progress import progress_bar
    from ttdg.data.synthetic.cases import SITES
    from ttdg.data.synthetic.write import write_benchmark

    with progress_bar("drawing", len(SITES) * cases) as progress:
        write_benchmark(out, variant, cases, size=size, seed=seed, progress=progress)
    typer.echo(f"{out}: try `ttdg data check {out}`")


@app.command("pack")
def pack_command(
    folder: Annotated[Path, typer.Argument(help="Benchmark folder.")],
    benchmark: BenchmarkOption = None,
    workers: WorkersOption = None,
) -> None:
    """Decode a benchmark once into one memory-mapped file per site, which training then reads.

    Example: [bold]ttdg data pack ~/data/polyp --benchmark polyp[/bold]
    """
    from ttdg.cli.progress import progress_bar
    from ttdg.data import pack_site

    described, sites = open_data(folder, benchmark)
    for site in sites.values():
        with progress_bar(site.name, len(site.cases)) as progress:
            path = pack_site(site, described, workers=workers, progress=progress)
        typer.echo(f"{path}: {len(site.cases)} cases, {path.stat().st_size / 1e6:.0f} MB")
