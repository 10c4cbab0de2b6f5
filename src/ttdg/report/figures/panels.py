"""Grids of images with predictions, and the self-contained page of the demo."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ttdg.files import atomic_file, write_text
from ttdg.report.rendering import render_html
from ttdg.report.terminal import Conclusion, SiteRow

TINTS = ((0.25, 0.77, 1.0), (1.0, 0.77, 0.0), (1.0, 0.32, 0.5))  # outline colours of labels 1, 2, 3


@dataclass(frozen=True)
class Panel:
    """An image with its true labels, if known, and the prediction and Dice (in [0, 1]) of each method."""

    case: str
    image: np.ndarray
    truth: np.ndarray | None
    answers: Mapping[str, tuple[np.ndarray, float | None]]
    note: str = ""  # beside the image

    @property
    def largest_label(self) -> int:
        """The largest true label; 0 if the truth is not known."""
        return 0 if self.truth is None else int(self.truth.max())


def draw_panels(path: Path, panels: Sequence[Panel], labels: Sequence[str]) -> Path:
    """Draw a row per image: the image, the true outlines if known, and the predicted outlines of each method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(panels[0].answers)
    truth = ["truth"] if panels[0].truth is not None else []
    titles = ["image", *truth, *("no adaptation" if name == "source" else name for name in names)]
    figure = Figure(figsize=(1.75 * len(titles), 1.85 * len(panels)), layout="constrained", dpi=130)
    axes = figure.subplots(len(panels), len(titles), squeeze=False)
    for panel, line in zip(panels, axes, strict=True):
        shown = [(None, ""), *((panel.truth, "") for _ in truth)]
        for answer, dice in panel.answers.values():
            shown.append((answer, "" if dice is None else f"Dice {100 * dice:.0f}"))
        line[0].set_ylabel(panel.note, fontsize=8)
        for axis, (mask, note) in zip(line, shown, strict=True):
            axis.imshow(panel.image)
            if mask is not None:
                _contours(axis, mask, len(labels))
            axis.set_xlabel(note, fontsize=8)
            axis.set(xticks=[], yticks=[])
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9)
    with atomic_file(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def _contours(axis: Any, mask: np.ndarray, labels: int) -> None:
    for label in range(1, labels):
        inside = mask >= label
        if inside.any() and not inside.all():
            axis.contour(inside, levels=[0.5], colors=[TINTS[(label - 1) % len(TINTS)]], linewidths=1.2)


def write_demo_page(
    path: Path,
    rows: Sequence[SiteRow],
    found: Conclusion,
    image: Path,
    sources: Mapping[str, Mapping[str, Any]],
) -> Path:
    """Write the demo as one self-contained HTML file."""
    away = {row.method: row for row in rows if row.site == found.target}
    html = render_html(
        "demo.html",
        rows=rows,
        target=found.target,
        sources=list(sources),
        found=found,
        home=found.home,
        away=away,
        image=base64.b64encode(image.read_bytes()).decode(),
    )
    write_text(path, html)
    return path
