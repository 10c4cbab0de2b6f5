"""Figures as in the paper: curves from records; segmentation grids, Grad-CAM and matched graphs from models."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttdg.bench.folder import RunFolder
from ttdg.bench.results import RunTable, import_polars
from ttdg.errors import UserError, suggestion
from ttdg.files import atomic_file
from ttdg.report.aggregate import distinct_values, image_dice, select_group, table_groups
from ttdg.report.figures.curves import Curve, find_curves
from ttdg.report.figures.panels import Panel, draw_panels
from ttdg.report.figures.plots import two_scale_plot

if TYPE_CHECKING:
    import polars as pl


SHOWN = 4  # images in a Grad-CAM figure


def write_curves(table: RunTable, out: Path) -> list[Path]:
    """Draw Dice and milliseconds per image against every setting that a grid varies."""
    return [_write(out / f"{_file_name(axis)}.png", _curve(axis)) for axis in find_curves(table)]


def _curve(axis: Curve) -> bytes:
    points = axis.points
    curves = {"Dice": [p.dice for p in points], "ms/image": [p.milliseconds for p in points]}
    title = f"{axis.experiment}: {axis.method}"
    return two_scale_plot(
        [p.value for p in points], curves, f"{axis.setting}\n{title}", ("mean Dice", "ms an image")
    )


def write_model_figures(table: RunTable, run: Path, methods: Sequence[str], out: Path) -> list[Path]:
    """Draw the segmentation grid, Grad-CAM and matched graphs of the chosen methods for every table.

    The streams run again, so the run's images and models must exist.
    """
    from ttdg.report.figures.answers import folder_with_models

    known = distinct_values(table.settings(), "method")
    for method in methods:
        if method not in known:
            raise UserError(f"the run has no method {method!r}{suggestion(method, known)}")
    if (folder := folder_with_models(table.run, run)) is None:
        raise UserError(
            "the run's images or models are missing; draw these figures on the machine that made the run"
        )
    images = image_dice(table)
    written: list[Path] = []
    for number, group in enumerate(table_groups(table)):
        mine = select_group(images, group)
        if set(methods) <= set(distinct_values(mine, "method")):
            written += _group_figures(table, mine, folder, methods, out, number)
    return written


def _group_figures(
    table: RunTable,
    images: "pl.DataFrame",
    folder: RunFolder,
    methods: Sequence[str],
    out: Path,
    number: int,
) -> Iterator[Path]:
    from ttdg.report.figures.model_figures import draw_grad_cams, draw_matched_graphs

    panels = list(segmentation_panels(table, images, folder, methods))
    labels = [str(label) for label in range(1 + max(panel.largest_label for panel in panels))]
    yield draw_panels(out / f"segmentation-{number}.png", panels, labels)
    jobs = {method: _job(images, method) for method in methods}
    chosen = [table.run.jobs[jobs[method]] for method in methods]
    yield _write(
        out / f"grad-cam-{number}.png", draw_grad_cams(dict(zip(methods, chosen, strict=True)), folder, SHOWN)
    )
    pairs = draw_matched_graphs(chosen[0], folder)
    if pairs is not None:
        yield _write(out / f"matching-{number}.png", pairs)


def segmentation_panels(
    table: RunTable, images: "pl.DataFrame", folder: RunFolder, methods: Sequence[str]
) -> Iterator[Panel]:
    """Yield one image per target: the one with the median Dice of the first method."""
    from ttdg.report.figures.answers import rerun_answers

    pl = import_polars()
    first = images.filter((pl.col("method") == methods[0]) & (pl.col("seed") == images["seed"][0]))
    for (sources, target), part in first.group_by(["sources", "target"], maintain_order=True):
        line = part.sort("dice").row(len(part) // 2, named=True)
        name = (str(target), str(line["site"]), str(line["case"]))
        answers, picked = {}, None
        for method in methods:
            mine = images.filter(
                (pl.col("method") == method) & (pl.col("sources") == sources) & (pl.col("target") == target)
                & (pl.col("seed") == line["seed"]) & (pl.col("site") == line["site"]) & (pl.col("case") == line["case"])
            ).row(0, named=True)  # fmt: skip
            picked = rerun_answers(table.run.jobs[mine["job"]], folder, {name})[name]
            answers[method] = (picked[2], mine["dice"] / 100)
        assert picked is not None
        yield Panel("/".join(name[1:]), picked[0], picked[1], answers)


def _job(images: "pl.DataFrame", method: str) -> str:
    return str(images.filter(import_polars().col("method") == method)["job"][0])


def _file_name(axis: Curve) -> str:
    text = f"{axis.experiment}-{axis.method}-{axis.setting}"
    words = ("".join(letters) for word, letters in itertools.groupby(text, str.isalnum) if word)
    return "-".join(words).lower()


def _write(path: Path, data: bytes) -> Path:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
    return path
