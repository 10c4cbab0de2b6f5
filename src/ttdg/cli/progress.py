"""Progress of long work: a bar in a terminal, occasional lines in a log."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.training import Progress as TrainingProgress


class Report(Protocol):
    """A function that reports progress."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that `done` items are finished; `total` sets the number of all items."""


@contextmanager
def progress_bar(what: str, total: int | None = None, show: bool = True) -> Iterator[Report]:
    """Show a progress bar with the remaining time; yields the function that reports progress."""
    with _progress(show) as progress:
        task = progress.add_task(what, total=total, note="")
        yield lambda done, total=None: progress.update(task, completed=done, total=total)


@contextmanager
def progress_bars(*names: str) -> Iterator[tuple[Callable[[int, int], None], ...]]:
    """Show several progress bars, each from its first report on; yields a function (done, total) for each."""
    with _progress(True) as progress:
        yield tuple(_hidden_bar(progress, name) for name in names)


def _hidden_bar(progress: Any, name: str) -> Callable[[int, int], None]:
    """Add a bar that appears with its first report; return the function that reports."""
    task = progress.add_task(name, total=None, note="", visible=False)
    return lambda done, total: progress.update(task, completed=done, total=total, visible=True)


@contextmanager
def training_bar(out: Path, show: bool, tensorboard: bool) -> "Iterator[Callable[[TrainingProgress], None]]":
    """Show the training step, loss, Dice on held-out source images and remaining time.

    With `tensorboard`, the values are also written to the folder `OUT.tensorboard`.
    """
    log = _tensorboard(out) if tensorboard and show else None
    with _progress(show) as progress:
        task = progress.add_task(f"training {out.name}", total=None, note="")

        def report(event: "TrainingProgress") -> None:
            scores = ", ".join(f"{region} {100 * score:.1f}" for region, score in event.validation.items())
            note = f"loss {event.loss:.3f}" + (f" · Dice {scores}" if scores else "")
            progress.update(task, completed=event.step, total=event.steps, note=note)
            if progress.disable and show and event.step % 500 == 0:
                sys.stderr.write(f"{out.name}: step {event.step}/{event.steps}, {note}\n")
            if log:
                log(event)

        yield report


def _progress(show: bool) -> Any:
    """Return a rich progress display, disabled unless stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    columns.append(TextColumn("{task.fields[note]}", markup=False))
    return Progress(*columns, console=Console(stderr=True), disable=not (show and sys.stderr.isatty()))


def _tensorboard(out: Path) -> "Callable[[TrainingProgress], None]":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'ttdg[track]'") from None
    writer = SummaryWriter(str(out.with_name(out.name + ".tensorboard")))

    def log(event: "TrainingProgress") -> None:
        writer.add_scalar("loss", event.loss, event.step)
        for region, score in event.validation.items():
            writer.add_scalar(f"dice/{region}", score, event.step)
        writer.flush()

    return log
