import re

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from ttdg.adaptation import METHODS, allowed, defaults
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
    assert max(map(cell_len, output.splitlines())) <= 80
    for name, method in METHODS.items():
        declared = (name, method.adapts, method.norm, method.reset, *method.parts)
        (row,) = re.findall(rf"^ {re.escape(name)} .*(?:\n {{5}}.*)*", output, re.MULTILINE)
        assert {word for text in declared for word in text.split()} <= set(row.split())


def test_a_wide_table_also_shows_when_a_method_predicts_its_needs_and_its_paper():
    output = " ".join(shown(columns=400).split())
    for name, method in METHODS.items():
        assert all(text in output for text in (*method.needs, method.paper)), name
    assert "predicts" not in shown(columns=80).splitlines()[1]


def test_the_table_says_what_is_a_reconstruction():
    assert "tasd-r is a reconstruction." in " ".join(shown(columns=80).split())


def test_the_table_says_what_reset_means():
    output = " ".join(shown(columns=80).split())
    assert "reset: policy of the publication; in an evaluation --stream decides" in output


@pytest.mark.parametrize("name", sorted(METHODS))
def test_one_method_is_shown_in_full(name):
    output = " ".join(shown(name).split())
    method = METHODS[name]
    predicts = "without an update" if method.adapts == "nothing" else f"{method.predict} the update"
    declared = (method.summary, method.paper, method.adapts, method.reset, method.norm, predicts)
    for text in (*declared, *method.needs, *method.parts):
        assert text in output


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_is_shown_with_default_allowed_values_text_and_origin_on_80_columns(name):
    output = shown(name, columns=80)
    assert max(map(cell_len, output.splitlines())) <= 80
    words = " ".join(output.split())
    for option, value in defaults(name).items():
        default = f"{value:.4g}" if isinstance(value, float) else repr(value) if value == "" else value
        values, documentation = allowed(name, option), METHODS[name].options[option]
        assert f"{option} = {default}{f' ({values})' if values else ''}" in words
        assert f"{documentation.text} default from {documentation.origin}" in words


def test_allowed_values_are_shown_in_words():
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
