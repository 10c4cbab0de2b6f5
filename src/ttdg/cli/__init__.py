"""The command line `ttdg`: commands parse their arguments, call the library and print.

Commands import heavy packages inside their functions, so that `ttdg --help` is quick.
"""

import errno
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from ttdg.cli import (
    audit,
    bench,
    data,
    demo,
    drift,
    evaluate,
    figure,
    info,
    join,
    leaderboard,
    methods,
    predict,
    report,
    serve,
    train,
    tune,
    verify,
)
from ttdg.cli.models import export, fingerprint, fit, foreign, prior
from ttdg.errors import TtdgWarning, UserError

# Errors of paths that the user named; other OSErrors are bugs.
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
FULL = "the disk is full; free space and give the same command again"


class Interrupted(BaseException):
    """Ctrl-C. Click turns a `KeyboardInterrupt` into the word "Aborted!", and knows nothing of this class."""


class Commands(TyperGroup):
    """The commands of `ttdg`."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C raises `Interrupted`, and an `EOFError`, which Click takes for Ctrl-D, a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except EOFError as error:
            raise RuntimeError(f"a file ends too early: {error}") from error


app = typer.Typer(
    name="ttdg",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    help="Adapt a segmentation model to a new hospital at test time, without labels, and measure the effect.",
)
app.command("demo")(demo.demo_command)
app.add_typer(data.app, name="data")
app.command("train")(train.train_command)
app.command("fit")(foreign.fit_command)
app.command("fit-prior")(fit.fit_prior_command)
app.command("fit-judge")(fit.fit_judge_command)
app.command("fit-fingerprint")(fingerprint.fit_fingerprint_command)
app.add_typer(prior.app, name="prior")
app.add_typer(figure.app, name="figure")
app.command("methods")(methods.methods_command)
app.command("tune")(tune.tune_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("bench")(bench.bench_command)
app.command("report")(report.report_command)
app.command("verify")(verify.verify_command)
app.command("join")(join.join_command)
app.command("leaderboard")(leaderboard.leaderboard_command)
app.command("predict")(predict.predict_command)
app.command("serve")(serve.serve_command)
app.command("drift")(drift.drift_command)
app.command("audit")(audit.audit_command)
app.command("revert")(audit.revert_command)
app.command("export")(export.export_command)
app.command("info")(info.info_command)


def main() -> None:
    """Run the command line. A user's mistake ends in one sentence; other exceptions show their traceback."""
    warnings.showwarning = _sentences(warnings.showwarning)
    try:
        app()
    except UserError as error:
        _end(str(error))
    except OSError as error:
        if is_full_disk(error):
            _end(FULL)
        if error.filename is None or error.errno not in PATH_ERRORS:
            raise
        _end(f"cannot use {error.filename} ({error.strerror}); check the path and permissions")
    except (KeyboardInterrupt, Interrupted):
        sys.stderr.write("\nttdg: interrupted; finished work is kept, and the same command resumes\n")
        sys.exit(130)
    except Exception as error:
        if is_full_disk(error):
            _end(FULL)
        raise


def is_full_disk(error: Exception) -> bool:
    """Return True if an error says that the disk, or the user's share of it, is full.

    Safetensors has an error of its own, which states the number of the system's error in its text.
    """
    if isinstance(error, OSError):
        return error.errno in DISK_ERRORS
    stated = re.search(r"\b(?:os error|code:) (\d+)", str(error))
    return type(error).__name__ == "SafetensorError" and stated is not None and int(stated[1]) in DISK_ERRORS


def _sentences(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that shows warnings of this package as sentences, and others with `show`."""

    def show_sentence(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, TtdgWarning):
            sys.stderr.write(f"ttdg: {message}\n")
        else:
            show(message, category, *place, **more)

    return show_sentence


def _end(sentence: str) -> NoReturn:
    sys.stderr.write(f"ttdg: {sentence}\n")
    sys.exit(2)
