"""The commands `ttdg audit` and `ttdg revert`."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.predict import printable

FolderArgument = Annotated[Path, typer.Argument(help="Output folder of ttdg predict.")]
BROKEN = 1  # exit status if the log is not whole


def audit_command(out: FolderArgument) -> None:
    """Verify the audit log of a prediction: its chain of hashes, its end, manifest.csv, and the masks.

    The exit status is 1 if a line was changed, inserted or removed, if manifest.csv was changed, or if no line names an
    answer or a mask. Masks that were changed by hand are listed.

    Example: [bold]ttdg audit out/[/bold]
    """
    from ttdg.newsite.audit import verify_audit

    report = verify_audit(out)
    counts = report.counts()
    typer.echo(
        f"{len(report.lines)} lines; " + ", ".join(f"{count} {name}" for name, count in counts.items())
    )
    for mask, why in report.masks.items():
        typer.echo(printable(f"{mask} {why}"))
    for note in report.notes:
        typer.echo(printable(note))
    for problem in report.problems:
        typer.echo(printable(problem), err=True)
    typer.echo("the log is broken, or does not fit the folder" if report.problems else "the log is whole")
    raise typer.Exit(BROKEN if report.problems else 0)


def revert_command(
    out: FolderArgument,
    to: Annotated[
        int, typer.Option("--to", min=0, help="Line of the audit log to go back to; 0 is the start.")
    ],
) -> None:
    """Withdraw the answers that were given after a line of the audit log.

    Their masks, overlays and probability maps, and the report, move to OUT/reverted/LINE, where LINE is the number of
    the new line of the log.

    The next [bold]ttdg predict[/bold] with the same options answers these files again.

    Example: [bold]ttdg revert out/ --to 3[/bold]
    """
    from ttdg.newsite.revert import revert

    files = revert(out, to)
    done = f"{len(files)} answers withdrawn, their masks are below {out / 'reverted'}"
    typer.echo(f"{out}: went back to line {to}; {done if files else 'no later answer was there'}")
