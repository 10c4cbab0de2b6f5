"""Warnings on the console."""

import sys
import warnings

import pytest

from ttdg import cli
from ttdg.errors import TtdgWarning

SENTENCE = "the images are dark; take others"


@pytest.fixture
def printed(monkeypatch, capsys):
    """A function that runs a command which warns, and returns what it prints."""

    def run(category):
        def command():
            warnings.warn(SENTENCE, category, stacklevel=1)

        monkeypatch.setattr(cli, "app", command)
        with warnings.catch_warnings():  # restores what `main` sets
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *place, **more: sys.stderr.write(f"elsewhere: {message}\n")
            cli.main()
        return capsys.readouterr().err

    return run


def test_a_warning_of_this_package_is_a_sentence_without_a_line_of_code(printed):
    assert printed(TtdgWarning) == f"ttdg: {SENTENCE}\n"


@pytest.mark.parametrize("category", [RuntimeWarning, UserWarning])
def test_a_warning_of_another_package_is_shown_as_usual(printed, category):
    assert printed(category) == f"elsewhere: {SENTENCE}\n"
