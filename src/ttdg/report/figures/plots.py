"""Plots of records as PNG bytes, drawn by matplotlib without a display."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ttdg.bench.results import import_polars
from ttdg.bench.run_file import is_baseline
from ttdg.report.aggregate import column_name, distinct_values

if TYPE_CHECKING:
    import polars as pl

COLOURS = ("#4a7fb5", "#d9534f", "#2a9d6f", "#e08e0b", "#7a5ea8", "#8c564b", "#17a2b8", "#5c6b7a")
STYLES = ("-", "--", ":", "-.")
LEGEND_LINE = 0.14  # inches of a line of a legend


def dice_boxplots(images: "pl.DataFrame") -> bytes:
    """Draw box plots of the images' Dice, one box per method and target."""
    pl = import_polars()
    methods = distinct_values(images, "method")
    columns = list(dict.fromkeys(images.select("protocol", "sources", "target").iter_rows()))
    figure, axes = new_figure(len(columns), 1.1 + 0.28 * len(methods))
    for axis, (protocol, sources, target) in zip(axes, columns, strict=True):
        here = images.filter((pl.col("sources") == sources) & (pl.col("target") == target))
        values = [here.filter(pl.col("method") == method)["dice"].to_numpy() for method in methods]
        axis.boxplot(values, orientation="horizontal", widths=0.6, flierprops={"markersize": 2},
                     medianprops={"color": "#d9534f"})  # fmt: skip
        axis.set_yticks(
            range(1, len(methods) + 1), methods if axis is axes[0] else [""] * len(methods), fontsize=7
        )
        axis.invert_yaxis()
        axis.set_xlim(-2, 102)
        axis.set_title(column_name(protocol, sources, target), fontsize=8)
        axis.set_xlabel("Dice", fontsize=7)
        axis.tick_params(labelsize=7)
    return png_bytes(figure)


def difference_curves(paired: "pl.DataFrame", baseline: str) -> bytes:
    """Draw the sorted Dice differences to the baseline of all images, one curve per method."""
    pl = import_polars()
    methods = [method for method in distinct_values(paired, "method") if not is_baseline(method, baseline)]
    figure, (axis,) = new_figure(1, max(3.2, 0.5 + LEGEND_LINE * len(methods)), 7.5)
    for number, method in enumerate(methods):
        values = np.sort(paired.filter(pl.col("method") == method)["difference"].to_numpy())
        if len(values):
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
            shares = np.linspace(0, 100, len(values))
            axis.plot(shares, values, style, color=colour, linewidth=1.2, label=method)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.set_xlabel("images, %, from the most harmed to the most helped", fontsize=8)
    axis.set_ylabel(f"Dice − {baseline}", fontsize=8)
    axis.tick_params(labelsize=7)
    if axis.lines[:-1]:
        axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    return png_bytes(figure)


def two_scale_plot(
    x: Sequence[float], curves: Mapping[str, Sequence[float]], xlabel: str, ylabels: tuple[str, str]
) -> bytes:
    """Draw two curves over the same axis, the second on its own scale."""
    figure, (axis,) = new_figure(1, 2.8, 5.0)
    first, second = curves
    axis.plot(x, curves[first], "o-", color="#4a7fb5", label=first)
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabels[0], color="#4a7fb5")
    other = axis.twinx()
    other.plot(x, curves[second], "s--", color="#d9534f", label=second)
    other.set_ylabel(ylabels[1], color="#d9534f")
    return png_bytes(figure)


def new_figure(columns: int, height: float, width: float = 2.3) -> tuple[Any, Any]:
    """Return a figure and its row of axes; sizes are in inches, `width` per column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(3.5, width * columns), height), layout="constrained", dpi=110)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def png_bytes(figure: Any) -> bytes:
    """Render a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
