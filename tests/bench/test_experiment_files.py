"""What every method is offered when it is tuned."""

import pytest

from ttdg.adaptation import METHODS, checked, defaults
from ttdg.evaluation.tuning import configurations


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_search_is_small_and_has_the_defaults_in_it(method):
    offered, usual = configurations(method), defaults(method)
    assert 1 <= len(offered) <= 6
    assert any(all(usual[name] == value for name, value in options.items()) for options in offered)
    for options in offered:
        assert {name: checked(method, name, value) for name, value in options.items()} == options
