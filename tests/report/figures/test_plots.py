"""Figures of the scores, drawn from numbers that are made by hand."""

import warnings

import polars as pl
import pytest

from ttdg.report.figures.plots import difference_curves


@pytest.mark.parametrize("methods", [1, 80])
def test_curves_of_many_methods_have_room_beside_their_legend(methods):
    names = [f"method {number}, with options as published" for number in range(methods)]
    values = {"method": [name for name in names for _ in range(3)], "difference": [-1.0, 0.0, 2.0] * methods}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert difference_curves(pl.DataFrame(values), "source").startswith(b"\x89PNG")
