"""The command line: it parses, calls and prints. Heavy imports happen inside the commands, so `--help` is quick."""

import sys

import typer

from ttdg.cli import (
    bench,
    data,
    demo,
    evaluate,
    fit,
    info,
    leaderboard,
    methods,
    predict,
    prior,
    report,
    train,
    tune,
    verify,
)
from ttdg.errors import UserError

app = typer.Typer(
    name="ttdg",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    help="Adapt a segmentation model to a new hospital at test time, without labels, and measure what that does.",
)
app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("fit-prior")(fit.fit_prior)
app.command("fit-judge")(fit.fit_judge)
app.add_typer(prior.app, name="prior")
app.command("methods")(methods.methods)
app.command("tune")(tune.tune)
app.command("evaluate")(evaluate.evaluate)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("verify")(verify.verify)
app.command("leaderboard")(leaderboard.leaderboard)
app.command("predict")(predict.predict)
app.command("info")(info.info)


def main() -> None:
    """What is the user's to mend ends in one sentence; everything else is ours and shows its traceback."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"ttdg: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("\nttdg: stopped; what is finished is kept, the same command goes on from there\n")
        sys.exit(130)
