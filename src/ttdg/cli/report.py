"""The command `ttdg report`: tables, a page and figures from the records of a run."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import output_folder


def report_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of packed records.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the report; default RUN/report.",
            show_default=False,
            callback=output_folder,
        ),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(
            help="Also write the records into this folder, in a small format for publication.",
            show_default=False,
            callback=output_folder,
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Also insert the tables into this Markdown file, between the two marks of this run.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Report only this experiment; may be repeated. Default: all.", show_default=False),
    ] = None,
    pictures: Annotated[
        float, typer.Option(help="Seconds that drawing the worst cases may take; needs data and models.")
    ] = 60,
    show: Annotated[
        list[str] | None,
        typer.Option(
            help="Draw segmentation grids and Grad-CAM of this method; may be repeated. Runs its streams again.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write tables as in the paper, with intervals, tests and harm: Markdown, LaTeX, CSV and one HTML page.

    Example: [bold]ttdg report runs/smoke[/bold]
    """
    from ttdg.bench.results import pack_run, read_table, select_experiments
    from ttdg.evaluation.tuned_options import pack_tuned
    from ttdg.report.comparison import report_tables
    from ttdg.report.figures.write import write_model_figures
    from ttdg.report.formats import to_markdown
    from ttdg.report.write import insert_tables, pack_verification, write_report

    table = read_table(run)
    if only:
        table = select_experiments(table, only)
    folder = out or run / "report"
    written = write_report(table, run, folder, pictures)
    if show:
        written += write_model_figures(table, run, show, folder / "figures")
    if into is not None:
        insert_tables(into, table.run.name, to_markdown(report_tables(table)))
    if pack is not None:
        written += pack_run(table, pack) + pack_tuned([run], pack) + pack_verification(table, [run], pack)
    for path in written:
        typer.echo(str(path))
    if missing := len({entry.job for entry in table.run.entries} - table.about.keys()):
        typer.echo(f"{missing} scorings of the plan have no record yet and are not in the tables", err=True)
