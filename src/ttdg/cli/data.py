"""The commands `ttdg data check`, `ttdg data synth`, `ttdg data pack` and `ttdg data import`."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import BenchmarkOption, WorkersOption, open_data, output_folder

SHOWN_PROBLEMS = 10  # the record of an import lists all

app = typer.Typer(no_args_is_help=True, help="Check, draw, pack and import benchmark folders.")


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

    from ttdg.data import check_benchmark, check_table, first_problems, load_benchmark

    with Console(stderr=True).status(f"reading {folder}"):
        report = check_benchmark(folder, load_benchmark(benchmark, folder), workers=workers)
    Console().print(check_table(report))
    for problem in first_problems(report):
        typer.echo(problem)
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


@app.command("import")
def import_command(
    name: Annotated[str, typer.Argument(help="Data set: promise12, refuge, kvasir, pacs, …")],
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder with the extracted download.")],
    out: Annotated[
        Path, typer.Argument(metavar="DST", help="Benchmark folder to write.", callback=output_folder)
    ],
    rater: Annotated[
        str | None,
        typer.Option(help="Whose masks, if the data set has several raters.", show_default=False),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            help="A csv file with the column case and any of site, patient and split, which overrule the download.",
            show_default=False,
        ),
    ] = None,
    workers: WorkersOption = None,
) -> None:
    """Turn the download of a public data set into a benchmark folder.

    Files that cannot be used are set aside with a reason, in DST/import-NAME.json, and the exit status is then 1.
    The same command continues an import that was interrupted. Several data sets may share DST.

    Example: [bold]ttdg data import kvasir ~/downloads/Kvasir-SEG ~/data/polyp[/bold]
    """
    from ttdg.cli.progress import progress_bar
    from ttdg.data.downloads.run import import_dataset

    with progress_bar(f"importing {name}") as progress:
        report = import_dataset(
            name, source, out, rater=rater, table=cases, workers=workers, progress=progress
        )
    for problem in report.set_aside[:SHOWN_PROBLEMS]:
        typer.echo(str(problem), err=True)
    sites = ", ".join(f"{site} {count:,}" for site, count in sorted(report.sites.items()))
    typer.echo(
        f"{out}: {sites or 'no case'}; {report.written:,} written, {report.kept:,} kept, "
        f"{len(report.set_aside):,} set aside ({report.record})"
    )
    raise typer.Exit(1 if report.set_aside else 0)
