"""The picture of a universe: the same point in the same colour, over images of several sites."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ttdg.files import atomic_file
from ttdg.prior.correspondence import NONE
from ttdg.prior.inspection import ImageNodes

COLOURED = 20  # points: as many as can be told apart


def chosen_images(sites: tuple[str, ...], each: int) -> list[list[int]]:
    """The first images of every site, as rows."""
    return [[i for i, name in enumerate(sites) if name == site][:each] for site in dict.fromkeys(sites)]


def common_points(
    points: Int[Tensor, "m n"], inside: Int[Tensor, "m n"], size: int, most: int = COLOURED
) -> list[int]:
    """Points met in many images at nodes where `inside` is positive: evenly spaced over those met at least three
    quarters as often as the commonest, so that every tissue has some."""
    here = torch.where((inside > 0) & (points != NONE), points, size)
    met = torch.zeros(len(points), size + 1, dtype=torch.long).scatter(1, here, 1)[:, :size].sum(0)
    often = ((met >= 0.75 * met.max()) & (met > 1)).nonzero()[:, 0]
    count = min(most, len(often))
    return [int(often[i * len(often) // count]) for i in range(count)]


def draw_atlas(
    path: Path,
    seen: ImageNodes,
    points: Int[Tensor, "m n"],
    structures: Int[Tensor, "m n"],
    size: int,
    each: int = 4,
) -> Path:
    """Rows are sites; nodes of the structures at their places, those of common universe points in colour."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = chosen_images(seen.sites, each)
    common, tint = common_points(points, structures, size), colormaps["tab20"]
    figure = Figure(figsize=(2.1 * each, 2.2 * len(rows)), layout="constrained", dpi=130)
    axes = figure.subplots(len(rows), each, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for line, row in zip(axes, rows, strict=True):
        line[0].set_title(seen.sites[row[0]], fontsize=9, loc="left")
        for axis, i in zip(line, row, strict=False):
            side = seen.images.shape[-1]
            axis.imshow(seen.images[i].movedim(0, -1).numpy())
            drawn = (structures[i] > 0) & (points[i] != NONE)
            y, x = (side * seen.nodes.coordinates[i, drawn] - 0.5).T.tolist()
            named = [int(point) for point in points[i, drawn]]
            colours = [tint(common.index(p)) if p in common else (1.0, 1.0, 1.0, 0.25) for p in named]
            axis.scatter(x, y, s=22, c=colours, linewidths=0.3, edgecolors="black")
            _zoom(axis, x, y, side)
    figure.suptitle("one colour, one universe point", fontsize=9)
    with atomic_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def _zoom(axis: Any, x: list[float], y: list[float], side: int) -> None:
    """To the structure and a third of its size around it, as a square within the image."""
    if not x:
        return
    half = min(max(max(x) - min(x), max(y) - min(y)) * 0.8 + 2, side / 2)
    for low, high, limits in ((min(x), max(x), axis.set_xlim), (min(y), max(y), axis.set_ylim)):
        middle = min(max((low + high) / 2, half - 0.5), side - half - 0.5)
        ends = (middle - half, middle + half)
        limits(*(ends if limits == axis.set_xlim else ends[::-1]))
