"""Dice gains over the unadapted model at real hospitals, from `docs/records`: the main table and its figure.

`python docs/_build/gains.py` prints the table of docs/results.md.
"""

import io
from functools import cache
from pathlib import Path

import numpy as np

from methods_page import table
from ttdg.bench.results import read_table, select_experiments
from ttdg.evaluation.statistics import bootstrap
from ttdg.report.aggregate import dice_differences, image_dice, transfer_differences

RECORDS = Path(__file__).parents[1] / "records"
COLUMNS = (  # benchmark, experiment of its run, heading
    ("polyp", "single source", "polyp, one source"),
    ("polyp", "multi-source", "polyp, several"),
    ("fundus", "single source", "fundus, one source"),
    ("fundus", "multi-source", "fundus, several"),
)
METHODS = {  # label in the records → label in the table
    "judge": "`judge`",
    "universe-choice": "`universe-choice`",
    "universe-choice, random universe": "`universe-choice`, random universe",
    "mean of all readings": "mean of all readings",
    "flip averaging": "flip averaging",
    "alpha-bn": "`alpha-bn`",
    "tent": "`tent`",
}
BATCH = 4


@cache
def transfers(benchmark: str, experiment: str) -> tuple[float, dict[str, dict[str, float]]]:
    """The Dice of `source`, and for each method the gain at each transfer; seeds are averaged image by image."""
    import polars as pl

    images = image_dice(select_experiments(read_table(RECORDS / benchmark), [experiment])).filter(
        pl.col("batch") == BATCH
    )
    paired = dice_differences(images, "source")
    source = images.filter(pl.col("method") == "source")
    by_target = source.group_by("sources", "target", "seed").agg(pl.col("dice").mean())
    gains = {
        method: {t.name: float(t.differences.mean()) for t in transfer_differences(paired, method)}
        for method in METHODS
    }
    return float(by_target["dice"].mean()), gains  # type: ignore[arg-type]


def interval(gains: list[float]) -> str:
    """The mean over transfers and its 95 % bootstrap interval, which resamples transfers."""
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def gains_table() -> str:
    """Methods by settings, the best mean of each column in bold."""
    columns = [transfers(benchmark, experiment) for benchmark, experiment, _ in COLUMNS]
    header = [
        f"{heading} ({source:.1f})" for (_, _, heading), (source, _) in zip(COLUMNS, columns, strict=True)
    ]
    means = [{m: round(float(np.mean(list(gains[m].values()))), 1) for m in METHODS} for _, gains in columns]
    rows = []
    for method, label in METHODS.items():
        cells = [interval(list(gains[method].values())) for _, gains in columns]
        best = [mean[method] == max(mean.values()) for mean in means]
        marked = [_bold(cell) if top else cell for cell, top in zip(cells, best, strict=True)]
        rows.append((label, *marked))
    return table(("method", *header), rows)


def _bold(cell: str) -> str:
    mean, rest = cell.split(" ", 1)
    return f"**{mean}** {rest}"


def gains_figure() -> bytes:
    """The gain of each method at each of the 25 transfers, as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(1, 2, sharey=True)
    names = list(METHODS)[::-1]
    for axis, benchmark in zip(axes, ("polyp", "fundus"), strict=True):
        for experiment, colour in (("single source", "tab:blue"), ("multi-source", "tab:orange")):
            _, gains = transfers(benchmark, experiment)
            for row, method in enumerate(names):
                values = list(gains[method].values())
                shift = 0.12 if experiment == "multi-source" else -0.12
                axis.scatter(
                    values, [row + shift] * len(values), s=16, color=colour, alpha=0.75, linewidths=0
                )
            axis.scatter([], [], s=16, color=colour, label=experiment)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set(title=benchmark, xlabel="Dice gained over `source`, in points")
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="x", alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


if __name__ == "__main__":
    print(gains_table())
