import pytest

from ttdg.errors import suggestion


@pytest.mark.parametrize("name", ["tent", "TENT", "Tnet", "tents"])
def test_the_closest_name_is_suggested_whatever_the_case(name):
    assert suggestion(name, ["SAR", "tent"]) == "; did you mean 'tent'? (known: SAR, tent)"


def test_the_suggestion_keeps_the_case_of_the_known_name():
    assert "did you mean 'SAR'" in suggestion("sar", ["SAR", "tent"])


def test_without_a_close_name_only_the_known_names_are_listed():
    assert suggestion("xyz", ["b", "a"]) == " (known: a, b)"
