import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from ttdg.bench.console import RunningMeans, progress_display, progress_view
from ttdg.bench.executors import Outcome
from ttdg.bench.folder import RunFolder
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.run import run_benchmark
from ttdg.bench.scheduler import Schedule
from ttdg.errors import UserError


def shown(thing):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(thing)
    return console.export_text()


@pytest.fixture
def half(finished):
    """A schedule in the middle of a finished run: (schedule, board)."""
    folder, run = finished
    schedule = Schedule(run.jobs, set(list(run.jobs)[:8]))
    schedule.start(list(run.jobs)[8])
    board = RunningMeans(run, RunFolder(folder, folder, folder / "models"))
    board.update(schedule)
    return schedule, board


def test_the_table_so_far_is_the_mean_of_what_is_done(half):
    _, board = half
    done = [key for key in board.dice if board.dice[key]]
    means = board.means()["main"]
    by_hand = [100 * board.dice[e.job][0] for e in board.run.entries if e.job in done and e.label == "norm"]
    assert means["norm"] == pytest.approx(sum(by_hand) / len(by_hand))


def test_the_picture_says_what_is_done_running_and_failed(half):
    schedule, board = half
    text = shown(progress_view(schedule, board, 1))
    assert f"8 of {len(schedule.jobs)} jobs done, 1 running" in text
    assert "norm" in text
    schedule.end(Outcome(next(iter(schedule.running)), "no", 2.0))
    assert "1 failed" in shown(progress_view(schedule, board, 1))


def test_a_log_gets_one_line_a_job(finished, capsys):
    folder, run = finished
    schedule = Schedule(run.jobs, set())
    with progress_display(interactive=False) as watch:
        tell = watch(PreparedRun(run, run.jobs, RunFolder(folder, folder, folder), 1, 0))
        tell(schedule)
        first, second = list(run.jobs)[:2]
        for key, error in ((first, None), (second, "no picture")):
            schedule.start(key)
            schedule.end(Outcome(key, error, 1.0))
            tell(schedule)
            tell(schedule)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert ": done in 1 s, about" in lines[0]
    assert "FAILED: no picture" in lines[1]


def test_a_log_also_has_the_row_that_another_stream_wrote(finished, capsys):
    folder, run = finished
    schedule = Schedule(run.jobs, set())
    with progress_display(interactive=False) as watch:
        tell = watch(PreparedRun(run, run.jobs, RunFolder(folder, folder, folder), 1, 0))
        tell(schedule)
        first, second = list(run.jobs)[:2]
        schedule.start(first)
        schedule.end(Outcome(first, None, 1.0), also=[second])
        tell(schedule)
    lines = sorted(line.split(": ", 1)[1].split(",")[0] for line in capsys.readouterr().err.splitlines())
    assert lines == ["done in 1 s", "done in the stream of its row with views"]


@pytest.mark.parametrize(
    ("modules", "absent"),
    [("run, ttdg.bench.console", "torch"), ("execute", "polars")],
    ids=["the scheduler stays small", "running a job needs no polars"],
)
def test_heavy_packages_stay_out(modules, absent):
    code = f"import sys, ttdg.bench.{modules}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mistake_in_the_yaml_is_said_before_any_process_starts(tmp_path):
    (tmp_path / "t.yaml").write_text("name: t\nexperiment: []\n")
    with pytest.raises(UserError, match="unknown key 'experiment'; did you mean 'experiments'"):
        run_benchmark(RunRequest(tmp_path / "t.yaml", tmp_path / "run"))


def test_a_stale_run_is_left_as_it_is(tmp_path):
    (tmp_path / "t.yaml").write_text("name: t\nexperiments: [{name: a, protocol: leave-one-out}]\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"format": 0}')
    with pytest.raises(UserError, match="made with record format 0"):
        run_benchmark(RunRequest(tmp_path / "t.yaml", tmp_path / "run"))
    assert (tmp_path / "run" / "run.json").read_text() == '{"format": 0}'


def test_names_in_square_brackets_are_shown_and_not_taken_for_markup(finished):
    folder, run = finished
    label = "alpha-bn [alpha=0.1][/bold]"
    entries = tuple(replace(entry, label=label, experiment="[red]e[/red]") for entry in run.entries)
    board = RunningMeans(replace(run, entries=entries), RunFolder(folder, folder, folder / "models"))
    schedule = Schedule(run.jobs, set(run.jobs))
    board.update(schedule)
    text = shown(progress_view(schedule, board, 1))
    assert label in text
    assert "[red]e[/red]" in text
