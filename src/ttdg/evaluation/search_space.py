"""What a search tries: the points of a method's grid, its published settings, and points beyond an edge of the grid.

Every method gets the same budget: at most six points of its grid, its published settings where the grid lacks them, and
a few further points if the best one lies at an edge.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ttdg.adaptation import METHODS, checked, defaults
from ttdg.adaptation.options import Range

BUDGET = 6  # points of the grid per method; published settings that it lacks are added
FACTORS, STEPS = (0.1, 1.0, 10.0), (1, 3)  # factors of the default learning rate; gradient steps
LARGEST_STEP = 10.0  # factor between an edge and the next value beyond it, at most

Point = Mapping[str, Any]


def grid_of(method: str, stream: str = "online") -> dict[str, tuple[Any, ...]]:
    """Return the method's own grid, or lr × {0.1, 1, 10} and 1 or 3 steps where it has those options.

    Methods that learn a whole site in the folder stream have another number of steps there, and so another grid.
    """
    own, options = METHODS[method], defaults(method)
    declared = own.folder_grid if stream == "folder" and own.folder_grid else own.grid
    if declared or not METHODS[method].backwards:
        return dict(declared)
    grid: dict[str, tuple[Any, ...]] = {}
    if "lr" in options:
        grid["lr"] = tuple(float(f"{factor * options['lr']:.6g}") for factor in FACTORS)
    if "steps" in options:
        grid["steps"] = STEPS
    return grid


def grid_text(method: str) -> str:
    """Say in words over which values the options of a method are tuned."""
    texts = []
    for stream in ("online", "folder") if METHODS[method].folder_grid else ("online",):
        axes = grid_of(method, stream).items()
        words = "; ".join(f"{option}: {', '.join(map(str, values))}" for option, values in axes)
        texts.append(f"{words} (stream {stream})" if METHODS[method].folder_grid else words)
    return "; ".join(texts) or "nothing"


def published_options(method: str, benchmark: str = "") -> dict[str, Any] | None:
    """Return the published options that differ from the defaults, or None if no setting of the method is published.

    Some methods are published with other options for a benchmark, which then count.
    """
    declared = METHODS[method]
    if declared.published is None:
        return None
    return {**declared.published, **declared.published_for.get(benchmark, {})}


def published_text(method: str) -> str:
    """Say in words which published options differ from the defaults."""
    if METHODS[method].published is None or not defaults(method):
        return "no setting"
    settings = {name: published_options(method, name) or {} for name in ("", *METHODS[method].published_for)}
    texts = []
    for benchmark, options in settings.items():
        words = ", ".join(f"{name} {value}" for name, value in options.items()) or "the defaults"
        texts.append(f"{words} for {benchmark}" if benchmark else words)
    return "; ".join(texts)


def configurations(method: str, stream: str = "online") -> list[dict[str, Any]]:
    """Return the points of the grid and the published settings; the defaults come first, so that they win a tie.

    All points name the same options, so that each of them is complete whatever the defaults become.
    """
    grid, usual = grid_of(method, stream), defaults(method)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    points = sorted(points, key=lambda point: any(usual[name] != value for name, value in point.items()))
    settings = [published_options(method, name) or {} for name in ("", *METHODS[method].published_for)]
    names = dict.fromkeys([*grid, *(name for setting in settings for name in setting)])
    complete = [{name: {**usual, **point}[name] for name in names} for point in [*points[:BUDGET], *settings]]
    return [point for number, point in enumerate(complete) if point not in complete[:number]]


def beyond_edge(
    method: str, best: Point, tried: Sequence[Point], stream: str = "online"
) -> tuple[str, Point] | None:
    """Return an option for which the best point has the least or the largest value tried, and the next point there.

    Only numbers of the method's grid that were varied count. The next value is on a geometric scale: twice or half of a
    whole number, and for other numbers the largest factor between two neighbouring values, at most ten. The option's
    range bounds it. None means that the best point lies inside the grid, or at the bounds of its options.
    """
    for name in grid_of(method, stream):
        values = sorted({point[name] for point in tried if name in point and _is_number(point[name])})
        if len(values) < 2 or best[name] not in (values[0], values[-1]):
            continue
        option = METHODS[method].options.get(name)
        bounds = option.range if option is not None and option.range is not None else Range()
        value = _next_value(values, best[name] == values[-1], bounds)
        if value is not None:
            return name, {**best, name: checked(method, name, value)}
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _next_value(values: Sequence[float | int], upwards: bool, bounds: Range) -> float | int | None:
    """Return the value beyond the last or the first one, or None if the bounds leave none."""
    edge = values[-1] if upwards else values[0]
    if edge <= 0:
        return None  # a geometric scale has neither zero nor negative numbers
    value: float | int
    if isinstance(edge, int):
        value = 2 * edge if upwards else edge // 2
    else:
        positive = [value for value in values if value > 0]
        factors = [large / small for small, large in itertools.pairwise(positive)]
        factor = min(max(factors, default=2.0), LARGEST_STEP)
        value = float(f"{edge * factor if upwards else edge / factor:.3g}")
    if upwards and value > bounds.high:
        value = type(edge)(bounds.high)
    return value if value in bounds and value != edge else None
