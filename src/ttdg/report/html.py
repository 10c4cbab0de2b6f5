"""The report as one HTML file that needs nothing beside it."""

import base64
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ttdg.bench.results import RunTable
from ttdg.files import write_text
from ttdg.report.aggregate import differences, groups, image_dice, in_group
from ttdg.report.figures.panels import draw_panels
from ttdg.report.figures.plots import by_site, paired_differences
from ttdg.report.tables import ReportTable, heading
from ttdg.report.worst_cases import Worst, cost, worst


@dataclass(frozen=True)
class Section:
    """The pictures of one group of tables."""

    title: str
    sites: str  # base64, as are the next
    differences: str
    worst: Sequence[Worst]
    pictures: str


def write_html(path: Path, table: RunTable, views: Sequence[ReportTable], run: Path, seconds: float) -> Path:
    """`seconds` is what drawing the worst cases may take in all; what does not fit is listed without pictures."""
    write_text(path, render_html("report.html", run=table.run, views=views, sections=_sections(table, run, seconds),
                            images=sum(line["images"] for line in table.about.values()), jobs=len(table.about),
                            rows=len(table.rows)))  # fmt: skip
    return path


def render_html(template: str, **values: object) -> str:
    from jinja2 import Environment, StrictUndefined

    text = resources.files("ttdg.report").joinpath("templates", template).read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text).render(**values)


def _sections(table: RunTable, run: Path, seconds: float) -> list[Section]:
    found, images = [], image_dice(table)
    for group in groups(table):
        mine = in_group(images, group)
        paired = differences(mine, table.run.baseline)
        cases = worst(paired, table.run.baseline)
        drawn = ""
        if cases and (needed := cost(table, cases)) <= seconds:
            seconds -= needed
            drawn = _picture(table, cases, run)
        title = heading(group, "images")
        found.append(
            Section(
                title,
                _text(by_site(mine)),
                _text(paired_differences(paired, table.run.baseline)),
                cases,
                drawn,
            )
        )
    return found


def _picture(table: RunTable, cases: Sequence[Worst], run: Path) -> str:
    """One picture a case, where the data are at hand; nothing where they are not."""
    if not table.run.data:
        return ""
    from ttdg.report.figures.answers import data_and_models, worst_panels

    if (place := data_and_models(table.run, run)) is None:
        return ""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for number, panel in enumerate(worst_panels(table, cases, place)):
            labels = [str(label) for label in range(int(panel.truth.max()) + 2)]
            parts.append(draw_panels(Path(folder) / f"{number}.png", [panel], labels).read_bytes())
    return " ".join(_text(part) for part in parts)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
