"""The steps of the methods are those of their official behaviour, and the comparison notices another form."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OTHER_FORMS = [
    ("pass", {"fallback": "entropy"}),
    ("domainadaptor", {"weighting": "sample"}),
    ("grata, memo", {"noise": "strong"}),
    ("grata", {"noise": "strong"}),
    ("tegda", {"quality": "probabilities"}),
    ("tegda, quality", {"quality": "probabilities"}),
    ("nc-ttt, sgd", {"optimiser": "adam"}),
    ("tent", {"predict": "after"}),
]


@pytest.fixture
def fidelity(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fidelity")


def test_every_step_has_its_golden_values(fidelity, capsys):
    with pytest.raises(SystemExit) as ended:
        fidelity.main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert all(f"\n{name}" in printed for name in fidelity.CHECKS)
    assert "DIFFERS" not in printed


@pytest.mark.parametrize(("name", "options"), OTHER_FORMS)
def test_another_form_differs_by_more_than_is_allowed(fidelity, name, options):
    check = fidelity.CHECKS[name]
    assert fidelity.largest_difference(check, **options) > 10 * check.allowed
