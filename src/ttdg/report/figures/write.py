"""The paper's figures: curves from records alone; segmentation grids, Grad-CAM and matched graphs with the models."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttdg.bench.folder import RunFolder
from ttdg.bench.results import RunTable, polars
from ttdg.errors import UserError, suggestion
from ttdg.files import atomic_file
from ttdg.report.aggregate import distinct, groups, image_dice, in_group
from ttdg.report.figures.curves import Axis, axes
from ttdg.report.figures.panels import Panel, draw_panels
from ttdg.report.figures.plots import lines

if TYPE_CHECKING:
    import polars as pl


SHOWN = 4  # images in a Grad-CAM figure


def write_curves(table: RunTable, out: Path) -> list[Path]:
    """Dice and milliseconds an image against every number that a grid varies."""
    return [_write(out / f"{_name(axis)}.png", _curve(axis)) for axis in axes(table)]


def _curve(axis: Axis) -> bytes:
    points = axis.points
    curves = {"Dice": [p.dice for p in points], "ms/image": [p.milliseconds for p in points]}
    title = f"{axis.experiment}: {axis.method}"
    return lines([p.value for p in points], curves, f"{axis.setting}\n{title}", ("mean Dice", "ms an image"))


def write_drawn(table: RunTable, run: Path, methods: Sequence[str], out: Path) -> list[Path]:
    """Figures that need images and models again, for the chosen methods: every table's grid, CAMs and pairs."""
    from ttdg.report.figures.answers import data_and_models

    known = distinct(table.settings(), "method")
    for method in methods:
        if method not in known:
            raise UserError(f"the run has no method {method!r}{suggestion(method, known)}")
    if (place := data_and_models(table.run, run)) is None:
        raise UserError("the run's images or models are not at hand; draw where the run was made")
    images = image_dice(table)
    written: list[Path] = []
    for number, group in enumerate(groups(table)):
        mine = in_group(images, group)
        if set(methods) <= set(distinct(mine, "method")):
            written += _drawn(table, mine, place, methods, out, number)
    return written


def _drawn(
    table: RunTable,
    images: "pl.DataFrame",
    place: RunFolder,
    methods: Sequence[str],
    out: Path,
    number: int,
) -> Iterator[Path]:
    from ttdg.report.figures.model_figures import draw_grad_cams, draw_matched_graphs

    panels = list(segmentation_grid(table, images, place, methods))
    labels = [str(label) for label in range(1 + max(int(panel.truth.max()) for panel in panels))]
    yield draw_panels(out / f"segmentation-{number}.png", panels, labels)
    jobs = {method: _job(images, method) for method in methods}
    chosen = [table.run.jobs[jobs[method]] for method in methods]
    yield _write(
        out / f"grad-cam-{number}.png", draw_grad_cams(dict(zip(methods, chosen, strict=True)), place, SHOWN)
    )
    pairs = draw_matched_graphs(chosen[0], place)
    if pairs is not None:
        yield _write(out / f"matching-{number}.png", pairs)


def segmentation_grid(
    table: RunTable, images: "pl.DataFrame", place: RunFolder, methods: Sequence[str]
) -> Iterator[Panel]:
    """Of each target the image whose Dice is the median of the first method's: neither the best nor the worst."""
    from ttdg.report.figures.answers import answers_again

    pl = polars()
    first = images.filter((pl.col("method") == methods[0]) & (pl.col("seed") == images["seed"][0]))
    for (sources, target), part in first.group_by(["sources", "target"], maintain_order=True):
        line = part.sort("dice").row(len(part) // 2, named=True)
        name = (str(target), str(line["site"]), str(line["case"]))
        answers, picked = {}, None
        for method in methods:
            mine = images.filter(
                (pl.col("method") == method) & (pl.col("sources") == sources) & (pl.col("target") == target)
                & (pl.col("seed") == line["seed"]) & (pl.col("case") == line["case"])
            ).row(0, named=True)  # fmt: skip
            picked = answers_again(table.run.jobs[mine["job"]], place, {name})[name]
            answers[method] = (picked[2], mine["dice"] / 100)
        assert picked is not None
        yield Panel("/".join(name[1:]), picked[0], picked[1], answers)


def _job(images: "pl.DataFrame", method: str) -> str:
    return str(images.filter(polars().col("method") == method)["job"][0])


def _name(axis: Axis) -> str:
    text = f"{axis.experiment}-{axis.method}-{axis.setting}"
    words = ("".join(letters) for word, letters in itertools.groupby(text, str.isalnum) if word)
    return "-".join(words).lower()


def _write(path: Path, data: bytes) -> Path:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
    return path
