"""The steps of the methods are those of their official behaviour, and the comparison notices another form."""

import importlib
from pathlib import Path

import pytest

from ttdg.adaptation.registry import METHODS, reconstructions

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
    ("vptta", {"warm": 4.0}),
    ("vptta", {"neighbours": 15}),
    ("vptta", {"capacity": 19}),
    ("sictta", {"neighbours": 4}),
    ("sictta", {"pixels": 100}),
    ("a3-tta", {"consistency": 0.2}),
    ("a3-tta, batch", {"shared_cosine": True}),
    ("dltta", {"pooled": False}),
    ("dltta", {"temperature": 3.0}),
    ("dltta", {"rule": "linear"}),
    ("dltta", {"capacity": 19}),
    ("deynet", {"copies": 1}),
    ("itta", {"mapping": "channel"}),
    ("itta", {"mixed_first": False}),
    ("cbmt, dpl, cpr", {"salt": "white"}),
    ("cbmt", {"balance": "all"}),
    ("cbmt", {"decay": 1.0}),
    ("upl-sfda", {"entropy": 0.9}),
    ("upl-sfda", {"threshold": 0.85}),
    ("dpl", {"statistics": "source"}),
    ("dpl", {"uncertainty": 0.04}),
    ("cpr, labels", {"walk": 8}),
    ("cpr, labels", {"sharpness": 1.0}),
    ("cpr", {"focal": 1.0}),
    ("cpr", {"low": 0.3}),
]
OWN = {"judge", "self-training"}  # methods of this project, as are all whose name starts with "universe"


@pytest.fixture
def fidelity(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fidelity")


def test_every_published_method_is_compared_unless_it_is_a_reconstruction(fidelity):
    published = {name for name in METHODS if name not in OWN and not name.startswith("universe")}
    assert published - fidelity.CHECKS.keys() == set(reconstructions(METHODS))


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
