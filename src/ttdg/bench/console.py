"""A run while it runs: jobs done, running and failed, the time left, and the table so far."""

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
from ttdg.evaluation.records import read_about


class RunningMeans:
    """Means of the scorings that have ended, read once each from the line about their job."""

    def __init__(self, run: RunPlan, place: RunFolder) -> None:
        self.run, self.place = run, place
        self.dice: dict[str, list[float]] = {}

    def update(self, schedule: Schedule) -> None:
        for key in schedule.done - self.dice.keys():
            if isinstance(self.run.jobs[key], Scoring):
                try:
                    self.dice[key] = list(read_about(self.place.record(key))["dice"].values())
                except UserError:
                    self.dice[key] = []

    def means(self) -> dict[str, dict[str, float]]:
        """experiment → method → mean Dice over targets and seeds so far, in percent."""
        sums: dict[str, dict[str, list[float]]] = {}
        for entry in self.run.entries:
            values = self.dice.get(entry.job, [])
            sums.setdefault(entry.experiment, {}).setdefault(entry.label, []).extend(values)
        return {
            name: {label: 100 * sum(v) / len(v) for label, v in rows.items() if v}
            for name, rows in sums.items()
        }


@contextmanager
def live(interactive: bool | None = None) -> Iterator[Callable[[PreparedRun], Callable[[Schedule], None]]]:
    """What `bench` tells: a live table where a person is watching, a line a job in a log."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if interactive if interactive is not None else sys.stderr.isatty():
        with Live(console=console, refresh_per_second=4, transient=True) as screen:
            yield lambda ready: _table_watch(ready, screen)
    else:
        yield lambda ready: _line_watch(ready)


def _table_watch(ready: PreparedRun, screen: Any) -> Callable[[Schedule], None]:
    board, last = RunningMeans(ready.run, ready.place), [0.0]

    def watch(schedule: Schedule) -> None:
        if time.monotonic() - last[0] > 0.5:
            board.update(schedule)
            screen.update(progress_view(schedule, board, ready.workers))
            last[0] = time.monotonic()

    return watch


def _line_watch(ready: PreparedRun) -> Callable[[Schedule], None]:
    told: set[str] = set()
    began = [False]

    def watch(schedule: Schedule) -> None:
        if not began[0]:
            told.update(schedule.done)
            began[0] = True
        for key in (schedule.done | schedule.failed.keys()) - told:
            told.add(key)
            end = f"FAILED: {schedule.failed[key]}" if key in schedule.failed else "done"
            count = f"{len(schedule.done)}/{len(schedule.jobs)}"
            sys.stderr.write(
                f"{count} {job_title(schedule.jobs[key])}: {end}{_eta(schedule, ready.workers)}\n"
            )

    return watch


def progress_view(schedule: Schedule, board: RunningMeans, slots: int) -> Any:
    """Counts, what is running, and the tables so far."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    blocked = len(schedule.blocked())
    counts = f"{len(schedule.done)} of {len(schedule.jobs)} jobs done, {len(schedule.running)} running"
    if schedule.failed:
        counts += f", {len(schedule.failed)} failed" + (f", {blocked} blocked by them" if blocked else "")
    parts: list[Any] = [Text(counts + _eta(schedule, slots), style="bold")]
    parts += [Text(f"  {job_title(schedule.jobs[key])}", style="dim") for key in sorted(schedule.running)[:8]]
    means = board.means()
    table = Table(title="mean Dice so far", title_justify="left")
    table.add_column("method")
    for name in means:
        table.add_column(name, justify="right")
    for label in dict.fromkeys(label for rows in means.values() for label in rows):
        cells = (rows.get(label) for rows in means.values())
        table.add_row(label, *("" if value is None else f"{value:.1f}" for value in cells))
    return Group(*parts, *([table] if table.row_count else []))


def _eta(schedule: Schedule, slots: int) -> str:
    eta = schedule.eta(slots)
    if eta is None or not schedule.left():
        return ""
    minutes, seconds = divmod(int(eta), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"
    return f", about {clock} left"
