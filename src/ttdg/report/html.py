"""The report as one self-contained HTML file."""

import base64
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.results import RunTable
from ttdg.bench.verification.outcome import verification_state
from ttdg.files import write_text
from ttdg.report.aggregate import dice_differences, distinct_values, image_dice, select_group, table_groups
from ttdg.report.figures.panels import draw_panels
from ttdg.report.figures.plots import dice_boxplots, difference_curves
from ttdg.report.rendering import render_html
from ttdg.report.tables import ReportTable, table_title
from ttdg.report.worst_cases import WorstCase, drawing_seconds, find_worst_cases


@dataclass(frozen=True)
class ReportSection:
    """Figures of one group of tables; images are PNG files in base64."""

    title: str
    sites: str
    differences: str
    worst: Sequence[WorstCase]
    pictures: str  # images of the worst cases, separated by spaces


def write_html(path: Path, table: RunTable, views: Sequence[ReportTable], run: Path, seconds: float) -> Path:
    """Write the page.

    Args:
        path: File to write.
        table: The run.
        views: Tables of the page.
        run: Folder of the run.
        seconds: Time limit for drawing the worst cases; cases beyond it are listed without images.
    """
    write_text(path, render_html("report.html", run=table.run, views=views, sections=_sections(table, run, seconds),
                            images=sum(line["images"] for line in table.about.values()), jobs=len(table.about),
                            rows=len(table.rows), state=verification_state(run, table)))  # fmt: skip
    return path


def _sections(table: RunTable, run: Path, seconds: float) -> list[ReportSection]:
    sections, images = [], image_dice(table)
    for group in table_groups(table):
        mine = select_group(images, group)
        paired = dice_differences(mine, table.run.baseline)
        cases = find_worst_cases(paired, table.run.baseline)
        drawn = ""
        masks = "dice" in distinct_values(table.rows, "metric")  # a class gives nothing to draw
        if masks and cases and (needed := drawing_seconds(table, cases)) <= seconds:
            seconds -= needed
            drawn = _draw_worst(table, cases, run)
        title = table_title(group, "images")
        sections.append(
            ReportSection(
                title,
                _base64(dice_boxplots(mine)),
                _base64(difference_curves(paired, table.run.baseline)),
                cases,
                drawn,
            )
        )
    return sections


def _draw_worst(table: RunTable, cases: Sequence[WorstCase], run: Path) -> str:
    """Draw one image per case; return an empty text if data or models are missing."""
    if not table.run.data:
        return ""
    from ttdg.report.figures.answers import folder_with_models, worst_panels

    if (folder := folder_with_models(table.run, run)) is None:
        return ""
    parts = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, panel in enumerate(worst_panels(table, cases, folder)):
            labels = [str(label) for label in range(panel.largest_label + 2)]
            parts.append(draw_panels(Path(scratch) / f"{number}.png", [panel], labels).read_bytes())
    return " ".join(_base64(part) for part in parts)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
