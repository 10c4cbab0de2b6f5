"""The report as one HTML file that needs nothing beside it."""

import base64
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ttdg.experiment.frame import Table
from ttdg.experiment.page import picture
from ttdg.experiment.plots import by_site, paired_differences
from ttdg.experiment.summary import differences, groups, image_dice, in_group
from ttdg.experiment.views import View, heading
from ttdg.experiment.worst import Worst, cost, worst
from ttdg.files import write_text


@dataclass(frozen=True)
class Section:
    """The pictures of one group of tables."""

    title: str
    sites: str  # base64, as are the next
    differences: str
    worst: Sequence[Worst]
    pictures: str


def write_html(path: Path, table: Table, views: Sequence[View], run: Path, seconds: float) -> Path:
    """`seconds` is what drawing the worst cases may take in all; what does not fit is listed without pictures."""
    write_text(path, render("report.html", run=table.run, views=views, sections=_sections(table, run, seconds),
                            images=sum(line["images"] for line in table.about.values()), jobs=len(table.about),
                            rows=len(table.rows)))  # fmt: skip
    return path


def render(template: str, **values: object) -> str:
    from jinja2 import Environment, StrictUndefined

    text = resources.files("ttdg.experiment").joinpath("templates", template).read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text).render(**values)


def _sections(table: Table, run: Path, seconds: float) -> list[Section]:
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


def _picture(table: Table, cases: Sequence[Worst], run: Path) -> str:
    """One picture a case, where the data are at hand; nothing where they are not."""
    if not table.run.data:
        return ""
    from ttdg.experiment.redraw import at_hand, worst_panels

    if (place := at_hand(table.run, run)) is None:
        return ""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for number, panel in enumerate(worst_panels(table, cases, place)):
            labels = [str(label) for label in range(int(panel.truth.max()) + 2)]
            parts.append(picture(Path(folder) / f"{number}.png", [panel], labels).read_bytes())
    return " ".join(_text(part) for part in parts)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
