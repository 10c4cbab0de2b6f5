"""The command `ttdg join`: the records of several runs as one folder of packed records."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import output_folder


def join_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or of packed records, of the same benchmark run.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for the packed records; may be one of RUNS.", callback=output_folder
        ),
    ],
) -> None:
    """Join records that several machines or versions have made into one folder of packed records.

    Where two runs have scored the same row, target and seed, the first run counts. Neither data nor models are needed.

    Example: [bold]ttdg join docs/records/shapes from-one from-two --out docs/records/shapes[/bold]
    """
    from ttdg.bench.other_runs.join import join_tables
    from ttdg.bench.results import pack_run, read_table
    from ttdg.evaluation.tuned_options import pack_tuned
    from ttdg.report.write import pack_verification

    joined = join_tables([read_table(run) for run in runs])
    written = pack_run(joined.table, out) + pack_tuned(runs, out) + pack_verification(joined.table, runs, out)
    for run, taken in zip(runs, joined.taken, strict=True):
        typer.echo(f"{run}: {taken} scorings")
    for path in written:
        typer.echo(str(path))
