"""Dice gains over the unadapted model at real hospitals, from `docs/records`: the main tables and their figures.

`python docs/_build/gains.py strong` prints the table of README.md, over a strongly trained source, and `python
docs/_build/gains.py` that over a source of 600 steps. `tests/test_docs.py` compares the first with README.md.
"""

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from methods_page import table
from packed import run_table
from ttdg.bench.results import select_experiments
from ttdg.evaluation.statistics import bootstrap, harm
from ttdg.report.aggregate import complete_transfers, dice_differences, image_dice, transfer_differences

BATCH = 4
HARM = 5.0  # points; an image that loses more is harmed
KINDS = ("polyp", "fundus")
COLOURS = {"one source": "tab:blue", "several": "tab:orange"}


@dataclass(frozen=True)
class Study:
    """Rows and records of a table."""

    runs: Mapping[str, str]  # kind of image → run
    experiments: Mapping[str, str]  # number of source sites, as in the headings → experiment
    rows: Mapping[str, str]  # label in the records → label in the table

    def columns(self) -> dict[tuple[str, str], "Gains"]:
        """The gains by kind of image and number of source sites."""
        return {
            (kind, sources): transfers(self.runs[kind], experiment, tuple(self.rows))
            for kind in KINDS
            for sources, experiment in self.experiments.items()
        }


STRONG = Study(
    {"polyp": "learn-polyp", "fundus": "learn-fundus"},
    {"one source": "folder, one source", "several": "folder, several sources"},
    {
        "universe": "`universe`",
        "self-training": "`self-training`",
        "judge": "`judge`",
        "three sizes and flips": "three sizes and flips",
        "flip averaging": "flip averaging",
    },
)
SHORT = Study(  # a source of 600 steps
    {"polyp": "polyp", "fundus": "fundus"},
    {"one source": "single source", "several": "multi-source"},
    {
        "judge": "`judge`",
        "universe-choice": "`universe-choice`",
        "universe-choice, random universe": "`universe-choice`, random universe",
        "mean of all readings": "mean of all readings",
        "flip averaging": "flip averaging",
        "alpha-bn": "`alpha-bn`",
        "tent": "`tent`",
    },
)


class Gains(NamedTuple):
    """What an experiment says of its rows."""

    source: float  # mean Dice of `source` over transfers
    by_transfer: dict[str, list[float]]  # row → mean gain at each transfer
    harmed: dict[str, list[float]]  # row → images of each transfer that are harmed, in percent


@cache
def transfers(run: str, experiment: str, rows: tuple[str, ...]) -> Gains:
    """Gains of rows of an experiment. An image of one seed counts as harmed, because a user runs one model.

    A transfer counts with the seeds with which all rows were scored.
    """
    import polars as pl

    images = image_dice(select_experiments(run_table(run), [experiment]))
    images = complete_transfers(images.filter(pl.col("batch") == BATCH), ["source", *rows])
    source = images.filter(pl.col("method") == "source").group_by("sources", "target")
    paired = dice_differences(images, "source")
    found = {row: transfer_differences(paired, row) for row in rows}
    return Gains(
        float(source.agg(pl.col("dice").mean())["dice"].mean()),  # type: ignore[arg-type]
        {row: [float(part.differences.mean()) for part in parts] for row, parts in found.items()},
        {row: [100 * harm(part.by_seed, HARM) for part in parts] for row, parts in found.items()},
    )


def interval(gains: Sequence[float]) -> str:
    """The mean over transfers and its 95 % bootstrap interval, which resamples transfers."""
    low, high = bootstrap([np.array([gain]) for gain in gains], resample_images=False, draws=10_000)
    return f"{np.mean(gains):+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def gains_table(study: Study) -> str:
    """Rows by settings, the best mean of each column in bold, then the worst transfer and the harm on polyps."""
    columns = study.columns()
    header = [f"{kind}, {sources} ({gains.source:.1f})" for (kind, sources), gains in columns.items()]
    best = [max(round(float(np.mean(v)), 1) for v in g.by_transfer.values()) for g in columns.values()]
    rows = []
    for row, label in study.rows.items():
        values = [gains.by_transfer[row] for gains in columns.values()]
        cells = [
            _bold(interval(part)) if round(float(np.mean(part)), 1) == top else interval(part)
            for part, top in zip(values, best, strict=True)
        ]
        worst = f"{min(map(min, values)):+.1f}".replace("-", "−")
        harmed = [share for (kind, _), g in columns.items() if kind == "polyp" for share in g.harmed[row]]
        rows.append((label, *cells, worst, f"{np.mean(harmed):.1f} %"))
    count = sum(len(part) for part in values)
    ending = (f"worst of {count} transfers", "polyp images that lose more than 5 Dice")
    return table(("method", *header, *ending), rows)


def _bold(cell: str) -> str:
    mean, rest = cell.split(" ", 1)
    return f"**{mean}** {rest}"


def gains_figure(study: Study) -> bytes:
    """The gain of each row at each transfer, as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = dict(zip(KINDS, figure.subplots(1, 2, sharey=True), strict=True))
    for (kind, sources), gains in study.columns().items():
        shift = 0.12 if sources == "several" else -0.12
        points = [(x, y + shift) for y, row in enumerate(study.rows) for x in gains.by_transfer[row]]
        axes[kind].scatter(
            *zip(*points, strict=True), s=16, color=COLOURS[sources], alpha=0.75, linewidths=0, label=sources
        )
    for kind, axis in axes.items():
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set(title=kind, xlabel="Dice gained over `source`, in points")
        axis.set_yticks(range(len(study.rows)), study.rows)
        axis.grid(axis="x", alpha=0.3)
    axes[KINDS[0]].invert_yaxis()  # the axes share it
    handles, labels = axes[KINDS[0]].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


if __name__ == "__main__":
    print(gains_table(STRONG if sys.argv[1:] == ["strong"] else SHORT))
