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
app.command("demo")(demo.demo_command)
app.add_typer(data.app, name="data")
app.command("train")(train.train_command)
app.command("fit-prior")(fit.fit_prior_command)
app.command("fit-judge")(fit.fit_judge_command)
app.add_typer(prior.app, name="prior")
app.command("methods")(methods.methods_command)
app.command("tune")(tune.tune_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("bench")(bench.bench_command)
app.command("report")(report.report_command)
app.command("verify")(verify.verify_command)
app.command("leaderboard")(leaderboard.leaderboard_command)
app.command("predict")(predict.predict_command)
app.command("info")(info.info_command)


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
