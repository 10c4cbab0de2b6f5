"""What a search tries: defaults, grid and publication, and how it goes on beyond an edge of the grid."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ttdg.adaptation import METHODS, checked, defaults
from ttdg.evaluation.search_space import (
    BUDGET,
    LARGEST_STEP,
    beyond_edge,
    configurations,
    grid_of,
    grid_text,
    published_options,
    published_text,
)

RATES = some.lists(
    some.floats(1e-8, 10.0), min_size=2, max_size=6, unique_by=lambda rate: float(f"{rate:.3g}")
)


def settings_of(method):
    """The published settings of a method as complete options: that of the paper, and those of single benchmarks."""
    found = [published_options(method, name) for name in ("", *METHODS[method].published_for)]
    return [{**defaults(method), **setting} for setting in found if setting is not None]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_search_has_six_points_of_the_grid_at_most_and_every_published_setting(method):
    points, usual = configurations(method), defaults(method)
    complete = [{**usual, **point} for point in points]
    assert complete[0] == usual, "the defaults come first, so that they win a tie"
    assert 1 <= len(points) <= BUDGET + len(settings_of(method))
    assert all(setting in complete for setting in settings_of(method))
    grid = grid_of(method)
    inside = [
        point
        for point in complete
        if all(point[name] == usual[name] or point[name] in grid.get(name, ()) for name in point)
    ]
    assert len(inside) >= min(BUDGET, len(list(itertools.product(*grid.values()))))


@pytest.mark.parametrize("method", ["self-training", "universe"])
def test_a_method_that_learns_a_site_is_searched_over_the_steps_that_the_stream_takes(method):
    for stream, used, unused in (("online", "steps", "folder_steps"), ("folder", "folder_steps", "steps")):
        points = configurations(method, stream)
        assert len(points) == BUDGET
        assert {**defaults(method), **points[0]} == defaults(method)
        assert len({point[used] for point in points}) > 1
        assert all(unused not in point for point in points)
        assert f"{used}: " in grid_text(method)
    tried = configurations(method, "folder")
    inside = {**tried[0], "folder_steps": 600}  # the default rate lies inside its axis
    assert beyond_edge(method, inside, tried, "folder") == ("folder_steps", {**inside, "folder_steps": 1200})


@pytest.mark.parametrize("method", sorted(name for name in METHODS if not METHODS[name].folder_grid))
def test_any_other_method_is_searched_over_the_same_values_on_every_stream(method):
    assert configurations(method, "folder") == configurations(method)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_all_points_of_a_search_name_the_same_options_and_differ(method):
    points = configurations(method)
    assert len({tuple(point) for point in points}) == 1
    assert all(point not in points[:number] for number, point in enumerate(points))
    for point in points:
        assert {name: checked(method, name, value) for name, value in point.items()} == point


@pytest.mark.parametrize(
    ("method", "setting"),
    [("tent", {"lr": 1e-3}), ("cotta", {"lr": 1e-3}), ("memo", {"lr": 5e-3}), ("vptta", {"lr": 0.05}),
     ("pass", {"lr": 5e-3, "steps": 2}), ("nc-ttt", {"lr": 1e-5, "steps": 50}), ("sar", {"lr": 2.5e-4})],
)  # fmt: skip
def test_the_settings_of_the_papers_are_tried(method, setting):
    assert any(setting.items() <= {**defaults(method), **point}.items() for point in configurations(method))


def test_a_publication_may_differ_by_benchmark_and_a_method_may_have_none():
    assert published_options("vptta", "polyp") == {}
    assert published_options("vptta", "fundus") == {"lr": 0.05}
    assert published_text("vptta") == "the defaults; lr 0.05 for fundus"
    assert published_options("alpha-bn") is None
    assert published_text("alpha-bn") == published_text("source") == "no setting"


@given(rates=RATES, number=some.integers(0, 5), steps=some.sampled_from([1, 3]))
def test_beyond_an_edge_is_one_step_out_on_one_axis_and_inside_the_grid_is_nothing(rates, number, steps):
    rates, range_of_rate = sorted(rates), METHODS["tent"].options["lr"].range
    best = {"lr": rates[number % len(rates)], "steps": steps}
    tried = [{"lr": rate, "steps": count} for rate in rates for count in (1, 2, 3, 4)]
    found = beyond_edge("tent", best, [*tried, best])
    if best["lr"] not in (rates[0], rates[-1]):
        assert found is None or found[0] == "steps"
        return
    assert found is not None
    name, point = found
    if name == "steps":  # the rate, rounded to three digits, is the edge itself
        return
    assert {key: value for key, value in point.items() if key != name} == {"steps": steps}
    assert point["lr"] in range_of_rate
    assert point["lr"] < rates[0] if best["lr"] == rates[0] else point["lr"] > rates[-1]
    widest = max(b / a for a, b in itertools.pairwise(rates))
    factor = max(point["lr"] / best["lr"], best["lr"] / point["lr"])
    assert factor == pytest.approx(min(widest, LARGEST_STEP), rel=6e-3)


def test_steps_go_on_by_doubling_and_never_below_one():
    tried = [{"lr": lr, "steps": steps} for lr in (1e-5, 1e-4, 1e-3) for steps in (1, 3)]
    assert beyond_edge("tent", {"lr": 1e-4, "steps": 3}, tried) == ("steps", {"lr": 1e-4, "steps": 6})
    assert beyond_edge("tent", {"lr": 1e-4, "steps": 1}, tried) is None
    assert beyond_edge("tent", {"lr": 1e-3, "steps": 3}, tried) == ("lr", {"lr": 1e-2, "steps": 3})
    assert beyond_edge("tent", {"lr": 1e-5, "steps": 1}, tried) == ("lr", {"lr": 1e-6, "steps": 1})


def test_the_range_of_an_option_bounds_what_is_added():
    tried = [{"alpha": alpha} for alpha in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)]
    assert beyond_edge("alpha-bn", {"alpha": 0.8}, tried) == ("alpha", {"alpha": 1.0})
    assert beyond_edge("alpha-bn", {"alpha": 1.0}, [*tried, {"alpha": 1.0}]) is None
    assert beyond_edge("alpha-bn", {"alpha": 0.05}, tried) == ("alpha", {"alpha": 0.025})


def test_only_numbers_that_the_grid_varies_are_extended():
    fixed = [{"least": 0.005, "decay": 0.9}, {"least": 0.05, "decay": 0.9}]
    assert beyond_edge("dua", fixed[1], fixed)[0] == "least", "decay was given and has one value"
    published = [{"lr": 1e-4, "steps": 1, "views": 8}, {"lr": 1e-4, "steps": 1, "views": 32}]
    assert beyond_edge("memo", published[1], published) is None, "views is no axis of the grid"
    zero = [{"lr": lr, "copies": copies} for lr in (1e-6, 1e-5, 1e-4) for copies in (0, 2)]
    assert beyond_edge("deynet", {"lr": 1e-5, "copies": 0}, zero) is None
    assert beyond_edge("deynet", {"lr": 1e-5, "copies": 2}, zero) == ("copies", {"lr": 1e-5, "copies": 4})
