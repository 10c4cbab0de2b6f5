import pytest

from ttdg.errors import suggestion


@pytest.mark.parametrize("name", ["tent", "TENT", "Tnet", "tents"])
def test_a_near_miss_is_found_in_whatever_case(name):
    assert suggestion(name, ["SAR", "tent"]) == "; did you mean 'tent'? (known: SAR, tent)"


def test_a_known_name_is_shown_as_it_is_written():
    assert "did you mean 'SAR'" in suggestion("sar", ["SAR", "tent"])


def test_a_name_like_no_other_is_answered_with_the_known_ones_alone():
    assert suggestion("xyz", ["b", "a"]) == " (known: a, b)"
