"""Progress of a run on the terminal: finished, running and failed jobs, time left, and mean Dice so far."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Scoring, job_title
from ttdg.bench.request import PreparedRun
from ttdg.bench.run_file import RunPlan
from ttdg.bench.scheduler import Schedule
from ttdg.errors import UserError
from ttdg.evaluation.records import primary_scores, read_about


class RunningMeans:
    """Mean Dice of the finished scorings; the metadata line of each record is read once."""

    def __init__(self, run: RunPlan, folder: RunFolder) -> None:
        self.run, self.folder = run, folder
        self.dice: dict[str, list[float]] = {}

    def update(self, schedule: Schedule) -> None:
        """Read the records of scorings that have finished since the last call."""
        for key in schedule.done - self.dice.keys():
            if isinstance(self.run.jobs[key], Scoring):
                try:
                    self.dice[key] = list(primary_scores(read_about(self.folder.record(key))).values())
                except (UserError, KeyError, AttributeError):
                    self.dice[key] = []

    def means(self) -> dict[str, dict[str, float]]:
        """Return experiment → method → mean Dice over targets and seeds so far, in percent."""
        values: dict[str, dict[str, list[float]]] = {}
        for entry in self.run.entries:
            dice = self.dice.get(entry.job, [])
            values.setdefault(entry.experiment, {}).setdefault(entry.label, []).extend(dice)
        return {
            name: {label: 100 * sum(v) / len(v) for label, v in rows.items() if v}
            for name, rows in values.items()
        }


@contextmanager
def progress_display(
    interactive: bool | None = None,
) -> Iterator[Callable[[PreparedRun], Callable[[Schedule], None]]]:
    """Yield a function that makes the `watch` callback of a run, and prints the remarks of its plan.

    On a terminal the callback updates a live table; otherwise it writes one line per finished job.
    `interactive` overrides the detection of a terminal.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if interactive if interactive is not None else sys.stderr.isatty():
        with Live(console=console, refresh_per_second=4, transient=True) as screen:
            yield lambda ready: _table_watch(_remarked(ready), screen)
    else:
        yield lambda ready: _line_watch(_remarked(ready))


def _remarked(ready: PreparedRun) -> PreparedRun:
    """Print the remarks of a plan."""
    for remark in ready.remarks:
        sys.stderr.write(f"{remark}\n")
    return ready


def _table_watch(ready: PreparedRun, screen: Any) -> Callable[[Schedule], None]:
    means, last = RunningMeans(ready.run, ready.folder), [0.0]

    def watch(schedule: Schedule) -> None:
        if time.monotonic() - last[0] > 0.5:
            means.update(schedule)
            screen.update(progress_view(schedule, means, ready.workers))
            last[0] = time.monotonic()

    return watch


def _line_watch(ready: PreparedRun) -> Callable[[Schedule], None]:
    reported: set[str] = set()
    started = [False]

    def watch(schedule: Schedule) -> None:
        if not started[0]:
            reported.update(schedule.done)
            started[0] = True
        for key in (schedule.done | schedule.failed.keys()) - reported:
            reported.add(key)
            count = f"{len(schedule.done)}/{len(schedule.jobs)}"
            title = job_title(schedule.jobs[key])
            sys.stderr.write(
                f"{count} {title}: {_result(schedule, key)}{_time_left(schedule, ready.workers)}\n"
            )

    return watch


def _result(schedule: Schedule, key: str) -> str:
    """Return how a job ended."""
    if key in schedule.failed:
        return f"FAILED: {schedule.failed[key]}"
    if key not in schedule.seconds:
        return "done in the stream of its row with views"
    return f"done in {schedule.seconds[key]:.0f} s"


def progress_view(schedule: Schedule, means: RunningMeans, slots: int) -> Any:
    """Return a rich renderable: job counts, up to eight running jobs, and the table of means so far."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    blocked = len(schedule.blocked())
    counts = f"{len(schedule.done)} of {len(schedule.jobs)} jobs done, {len(schedule.running)} running"
    if schedule.failed:
        counts += f", {len(schedule.failed)} failed" + (f", {blocked} blocked by them" if blocked else "")
    parts: list[Any] = [Text(counts + _time_left(schedule, slots), style="bold")]
    parts += [Text(f"  {job_title(schedule.jobs[key])}", style="dim") for key in sorted(schedule.running)[:8]]
    by_experiment = means.means()
    table = Table(title="mean Dice or accuracy so far", title_justify="left")
    table.add_column("method")
    for name in by_experiment:
        table.add_column(escape(name), justify="right")
    for label in dict.fromkeys(label for rows in by_experiment.values() for label in rows):
        values = (rows.get(label) for rows in by_experiment.values())
        table.add_row(escape(label), *("" if value is None else f"{value:.1f}" for value in values))
    return Group(*parts, *([table] if table.row_count else []))


def _time_left(schedule: Schedule, slots: int) -> str:
    eta = schedule.eta(slots)
    if eta is None or not schedule.left():
        return ""
    minutes, seconds = divmod(int(eta), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"
    return f", about {clock} left"
