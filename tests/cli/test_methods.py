import re

import pytest
from typer.testing import CliRunner

from ttdg.adapt import METHODS, defaults
from ttdg.cli import app
from ttdg.errors import UserError


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["methods", *arguments], env={"COLUMNS": "250", "TERM": "dumb"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_table_has_a_line_for_every_method_with_its_passes():
    output = shown()
    for name, method in METHODS.items():
        (line,) = re.findall(rf"^│ {re.escape(name)} +│.*$", output, re.MULTILINE)
        assert f" {method.forwards}/{method.backwards} " in line


@pytest.mark.parametrize("name", sorted(METHODS))
def test_one_method_is_shown_in_full(name):
    output = " ".join(shown(name).split())
    method = METHODS[name]
    for text in (method.summary, method.paper, method.adapts, method.reset, method.norm):
        assert text in output
    for option, value in defaults(name).items():
        assert f"{option} = {value}" in output
    for part in method.parts:
        assert part in output


def test_a_misspelt_method_is_answered_with_the_right_one():
    with pytest.raises(UserError, match="did you mean 'cotta'"):
        shown("cota")
