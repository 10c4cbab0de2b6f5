"""The table of `ttdg info` in a terminal and in a pipe."""

import io
import re

import pytest
import rich.console
from typer.testing import CliRunner

from ttdg.cli import app
from ttdg.cli.info import describe_checkpoint, describe_installation


@pytest.mark.parametrize("columns", ["20", "80", "500"])
@pytest.mark.parametrize("model", ["demo", None])
def test_in_a_pipe_each_row_is_one_line_of_any_length(model, columns):
    rows = describe_installation() if model is None else describe_checkpoint(model)
    result = CliRunner().invoke(app, ["info", *([model] if model else [])], env={"COLUMNS": columns})
    lines = [re.split(r"  +", line, maxsplit=1) for line in result.output.splitlines()]
    assert dict(lines) == rows
    assert max(map(len, result.output.splitlines())) > 80


def test_in_a_terminal_no_line_is_wider_than_the_terminal_and_nothing_is_cut(monkeypatch):
    shown = io.StringIO()
    terminal = rich.console.Console(file=shown, force_terminal=True, width=60, no_color=True)
    monkeypatch.setattr(rich.console, "Console", lambda: terminal)
    CliRunner().invoke(app, ["info", "demo"])
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown.getvalue().splitlines()]
    assert max(map(len, lines)) <= 60
    assert re.sub(r"\s", "", describe_checkpoint("demo")["recipe"]) in re.sub(r"\s", "", "".join(lines))
