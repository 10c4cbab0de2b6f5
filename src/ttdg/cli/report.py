"""ttdg report: tables and a page from a run's records."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of packed records.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the report; default RUN/report.", show_default=False),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(help="Also write the records here, small enough to publish.", show_default=False),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Text to put the tables into, between its two marks for this run.", show_default=False
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Experiment to report; several times. Default: all.", show_default=False),
    ] = None,
    pictures: Annotated[
        float, typer.Option(help="Seconds that drawing the worst cases may take, where the data are at hand.")
    ] = 60,
    show: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to draw segmentation grids and Grad-CAM of; several times. Runs its streams again.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tables as in the paper with intervals, tests and harm: Markdown, LaTeX, CSV and one page of HTML.

    Example: [bold]ttdg report runs/smoke[/bold]
    """
    from ttdg.bench.results import only as narrowed
    from ttdg.bench.results import pack_run as write_pack
    from ttdg.bench.results import read_table
    from ttdg.evaluation.tuned_options import pack_tuned
    from ttdg.report.comparison import report_tables
    from ttdg.report.figures.write import write_drawn
    from ttdg.report.formats import markdown
    from ttdg.report.write import insert, pack_verification, write_report

    table = read_table(run)
    if only:
        table = narrowed(table, only)
    written = write_report(table, run, out or run / "report", pictures)
    if show:
        written += write_drawn(table, run, show, (out or run / "report") / "figures")
    if into is not None:
        insert(into, table.run.name, markdown(report_tables(table)))
    if pack is not None:
        written += write_pack(table, pack) + pack_tuned(run, pack) + pack_verification(table, run, pack)
    missing = len({entry.job for entry in table.run.entries} - table.about.keys())
    for path in written:
        typer.echo(str(path))
    if missing:
        typer.echo(
            f"{missing} scorings of the plan have no records yet and are not in these tables", err=True
        )
