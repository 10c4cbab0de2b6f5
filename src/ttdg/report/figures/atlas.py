"""Figure of a universe: nodes matched to the same universe point have the same colour in images of all sites."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ttdg.files import atomic_file
from ttdg.prior.correspondence import UNMATCHED
from ttdg.prior.inspection import ImageNodes

COLOURED = 20  # number of points in colour: more colours are hard to distinguish


def first_images_by_site(sites: tuple[str, ...], each: int) -> list[list[int]]:
    """Return the indices of the first `each` images of every site, one row per site."""
    return [[i for i, name in enumerate(sites) if name == site][:each] for site in dict.fromkeys(sites)]


def common_points(
    points: Int[Tensor, "m n"], inside: Int[Tensor, "m n"], size: int, most: int = COLOURED
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
    """Draw images of each site in a row, with the nodes of the structures; common universe points are in colour."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = first_images_by_site(seen.sites, each)
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
            drawn = (structures[i] > 0) & (points[i] != UNMATCHED)
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
    """Zoom to a square around the structure with a margin of a third of its size, within the image."""
    if not x:
        return
    half = min(max(max(x) - min(x), max(y) - min(y)) * 0.8 + 2, side / 2)
    for low, high, limits in ((min(x), max(x), axis.set_xlim), (min(y), max(y), axis.set_ylim)):
        middle = min(max((low + high) / 2, half - 0.5), side - half - 0.5)
        ends = (middle - half, middle + half)
        limits(*(ends if limits == axis.set_xlim else ends[::-1]))
