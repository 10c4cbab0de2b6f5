import re

import pytest
from typer.testing import CliRunner

from ttdg.adaptation import METHODS, defaults
from ttdg.cli import app
from ttdg.errors import UserError


def shown(*arguments: str, columns: int = 250) -> str:
    result = CliRunner().invoke(app, ["methods", *arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_table_has_a_line_for_every_method_with_its_passes():
    output = shown()
    for name, method in METHODS.items():
        (line,) = re.findall(rf"^ {re.escape(name)} .*$", output, re.MULTILINE)
        assert f" {method.forwards}/{method.backwards} " in line


def test_on_80_columns_no_word_is_broken_or_lost():
    output = shown(columns=80)
    assert max(map(len, output.splitlines())) <= 80
    for name, method in METHODS.items():
        declared = (name, method.adapts, method.norm, method.reset, *method.parts)
        (row,) = re.findall(rf"^ {re.escape(name)} .*(?:\n {{5}}.*)*", output, re.MULTILINE)
        assert {word for text in declared for word in text.split()} <= set(row.split())


def test_a_wide_table_also_says_when_a_method_answers_what_it_needs_and_whose_it_is():
    output = " ".join(shown(columns=400).split())
    for name, method in METHODS.items():
        assert all(text in output for text in (*method.needs, method.paper)), name
    assert "answers" not in shown(columns=80).splitlines()[1]


def test_the_table_says_what_is_a_reconstruction():
    assert "tasd-r is a reconstruction." in " ".join(shown(columns=80).split())


def test_the_table_says_what_reset_means():
    output = " ".join(shown(columns=80).split())
    assert "reset: the policy it was published with; in an evaluation --stream decides" in output


@pytest.mark.parametrize("name", sorted(METHODS))
def test_one_method_is_shown_in_full(name):
    output = " ".join(shown(name).split())
    method = METHODS[name]
    answers = "without an update" if method.adapts == "nothing" else f"{method.predict} the update"
    for text in (
        method.summary,
        method.paper,
        method.adapts,
        method.reset,
        method.norm,
        answers,
        *method.needs,
    ):
        assert text in output
    for option, value in defaults(name).items():
        said = f"{option} = {value:.4g}" if isinstance(value, float) else f"{option} = {value}"
        assert said.strip() in output
    for part in method.parts:
        assert part in output


def test_options_are_shown_with_what_they_may_be():
    output = " ".join(shown("cotta").split())
    for line in (
        "lr = 1e-05 (0 or more)",
        "restore = 0.01 (between 0 and 1)",
        "head = softmax (one of softmax, sigmoid)",
    ):
        assert line in output
    assert "remember = True (true or false)" in shown("itta").replace("  (", " (")


def test_a_misspelt_method_is_answered_with_the_right_one():
    with pytest.raises(UserError, match="did you mean 'cotta'"):
        shown("cota")
