"""Figure of a universe: nodes matched to the same universe point have the same mark in images of all sites."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ttdg.files import atomic_file
from ttdg.prior.correspondence import UNMATCHED
from ttdg.prior.inspection import ImageNodes

# Colours of Okabe and Ito, which colour-blind eyes can tell apart, without black and grey; each with several shapes.
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#ffffff")
SHAPES = ("o", "s", "^", "D", "P", "v")
MARKED = 20  # number of points with a mark of their own: more are hard to distinguish


def point_mark(number: int) -> tuple[str, str]:
    """Return the colour and the shape of the marked point with this number; neighbours differ in both."""
    return COLOURS[number % len(COLOURS)], SHAPES[(number + 2 * (number // len(COLOURS))) % len(SHAPES)]


def first_images_by_site(sites: tuple[str, ...], each: int) -> list[list[int]]:
    """Return the indices of the first `each` images of every site, one row per site."""
    return [[i for i, name in enumerate(sites) if name == site][:each] for site in dict.fromkeys(sites)]


def common_points(
    points: Int[Tensor, "m n"], inside: Int[Tensor, "m n"], size: int, most: int = MARKED
) -> list[int]:
    """Return up to `most` universe points that are matched in many images, at nodes where `inside` is positive.

    The points are evenly spaced among those matched in at least three quarters as many images as the most common
    point, so that every tissue is represented. `size` is the number of universe points.
    """
    here = torch.where((inside > 0) & (points != UNMATCHED), points, size)
    images = torch.zeros(len(points), size + 1, dtype=torch.long).scatter(1, here, 1)[:, :size].sum(0)
    common = ((images >= 0.75 * images.max()) & (images > 1)).nonzero()[:, 0]
    count = min(most, len(common))
    return [int(common[i * len(common) // count]) for i in range(count)]


def draw_atlas(
    path: Path,
    seen: ImageNodes,
    points: Int[Tensor, "m n"],
    structures: Int[Tensor, "m n"],
    size: int,
    each: int = 4,
) -> Path:
    """Draw images of each site in a row, with the nodes of the structures. Each common universe point has its own mark.

    The images are grey, so that no mark has the colour of the tissue under it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = first_images_by_site(seen.sites, each)
    common = common_points(points, structures, size)
    figure = Figure(figsize=(2.1 * each, 2.2 * len(rows)), layout="constrained", dpi=130)
    axes = figure.subplots(len(rows), each, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for line, row in zip(axes, rows, strict=True):
        line[0].set_title(seen.sites[row[0]], fontsize=9, loc="left")
        for axis, i in zip(line, row, strict=False):
            side = seen.images.shape[-1]
            axis.imshow(seen.images[i].float().mean(0).numpy(), cmap="gray", vmin=-60, vmax=315)
            drawn = (structures[i] > 0) & (points[i] != UNMATCHED)
            y, x = (side * seen.nodes.coordinates[i, drawn] - 0.5).T.tolist()
            axis.scatter(x, y, s=3, c="white", linewidths=0, alpha=0.7)
            for at, point in enumerate(points[i, drawn].tolist()):
                if point in common:
                    colour, shape = point_mark(common.index(point))
                    axis.scatter(
                        x[at], y[at], s=34, c=colour, marker=shape, linewidths=0.7, edgecolors="black"
                    )
            _zoom(axis, x, y, side)
    figure.suptitle("one colour and shape, one universe point", fontsize=9)
    with atomic_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def _zoom(axis: Any, x: list[float], y: list[float], side: int) -> None:
    """Zoom to a square around the structure with a margin of a third of its size, within the image."""
    if not x:
        return
    half = min(max(max(x) - min(x), max(y) - min(y)) * 0.8 + 2, side / 2)
    for low, high, limits in ((min(x), max(x), axis.set_xlim), (min(y), max(y), axis.set_ylim)):
        middle = min(max((low + high) / 2, half - 0.5), side - half - 0.5)
        ends = (middle - half, middle + half)
        limits(*(ends if limits == axis.set_xlim else ends[::-1]))
