"""Comparisons of rows of which some seeds were not scored."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from ttdg.report.aggregate import complete_transfers, dice_differences, transfer_differences

METHODS = ("source", "a", "b")
SETTINGS = {"experiment": "main", "protocol": "leave-one-out", "stream": "online", "batch": 4}
CELLS = [(method, target, seed) for method in METHODS for target in ("east", "west") for seed in (0, 1, 2)]


def frame(cells):
    """Two images of every scored cell; every seed has its own level, and `b` is 1 above `a` with the same seed."""
    rows = [
        {**SETTINGS, "method": method, "sources": f"not {target}", "seed": seed, "training": f"{target}{seed}",
         "job": f"{method}{target}{seed}",
         "target": target, "site": target, "case": case, "dice": 50.0 + 10 * seed + METHODS.index(method)}
        for method, target, seed in cells
        for case in ("1", "2")
    ]  # fmt: skip
    return pl.DataFrame(rows)


@given(st.sets(st.sampled_from(CELLS), min_size=1))
def test_complete_transfers_keep_the_seeds_that_all_methods_have(cells):
    kept = complete_transfers(frame(sorted(cells)), METHODS)
    whole = {(target, seed) for _, target, seed in cells if {(m, target, seed) for m in METHODS} <= cells}
    assert set(kept.select("target", "seed").unique().iter_rows()) == whole
    assert len(kept) == 2 * len(METHODS) * len(whole)


@given(st.sets(st.sampled_from(CELLS), min_size=1))
def test_a_difference_of_two_rows_is_taken_over_the_seeds_that_both_have(cells):
    images = frame(sorted(cells))
    found = transfer_differences(dice_differences(images, "a"), "b")
    both = {target for method, target, seed in cells if method == "b" and ("a", target, seed) in cells}
    assert {t.name for t in found} == both
    assert all((t.differences == 1).all() for t in found)
