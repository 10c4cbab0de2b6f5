"""A table of scores for the terminal and for the demo's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ttdg.adaptation import reconstructions
from ttdg.evaluation.evaluate import Evaluation
from ttdg.evaluation.records import PRIMARY, row_label
from ttdg.evaluation.statistics import wilson

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class SiteRow:
    """One method on one site: means over every image and region, in percent; `alignment` is E_φ^max.

    For a classification, `dice` is the accuracy, and `alignment` and `structure` are NaN.
    """

    site: str
    method: str
    images: int
    dice: float
    alignment: float
    structure: float
    by_region: dict[str, float]
    milliseconds: float  # per image
    views: str = "plain"  # over which the answers are averaged
    statistics: str = "own"  # of BatchNorm, under the method
    interval: tuple[float, float] | None = None  # 95 % interval of the accuracy of a classification
    further: Mapping[str, float] = field(
        default_factory=dict
    )  # mean over volumes or images by head of column


@dataclass(frozen=True)
class Conclusion:
    """What one method changes at a new site and at the sites that the model knows: mean Dice in percent."""

    method: str
    target: str
    unadapted: float
    adapted: float
    home: float  # mean over the source sites, unadapted
    home_adapted: float

    @property
    def sentence(self) -> str:
        """The conclusion in words."""
        return (
            f"{self.method} raises the Dice at {self.target} from {self.unadapted:.1f} to {self.adapted:.1f}, without "
            f"labels; at the hospitals that the model knows, it changes {self.home:.1f} to {self.home_adapted:.1f}"
        )


def conclude(rows: "Sequence[SiteRow]", target: str, method: str) -> Conclusion:
    """Return what a method, chosen before its scores were seen, gains at the target and costs elsewhere."""

    def mean(name: str, away: bool) -> float:
        values = [row.dice for row in rows if row.method == name and (row.site == target) is away]
        return float(np.mean(values)) if values else float("nan")

    values = (mean(name, away) for away in (True, False) for name in ("source", method))
    return Conclusion(method, target, *values)


def summarise(evaluations: Sequence[Evaluation]) -> list[SiteRow]:
    """Return one row per evaluation, grouped by site."""
    rows = [_summary(evaluation) for evaluation in evaluations]
    order = {site: number for number, site in enumerate(dict.fromkeys(row.site for row in rows))}
    return sorted(rows, key=lambda row: order[row.site])


def _summary(evaluation: Evaluation) -> SiteRow:
    """Means over all images; E_φ^max is averaged over regions."""
    values: dict[str, list[float]] = {}
    by_region: dict[str, list[float]] = {}
    for _, _, _, region, metric, value in evaluation.rows:
        values.setdefault(metric, []).append(value)
        if metric in PRIMARY:
            by_region.setdefault(region, []).append(value)
    about, right = evaluation.about, values.get("accuracy")
    low, high = wilson(sum(right), len(right)) if right else (0.0, 0.0)

    def percent(metric: str) -> float:
        return 100 * float(np.mean(values[metric])) if metric in values else float("nan")

    return SiteRow(
        about["site"],
        about["method"],
        about["images"],
        percent("accuracy" if right else "dice"),
        percent("alignment_max"),
        percent("structure"),
        {region: 100 * float(np.mean(dice)) for region, dice in by_region.items()},
        1000 * float(np.mean(values["seconds"])),
        about.get("views", "plain"),
        about.get("statistics", "own"),
        (100 * low, 100 * high) if right else None,
        _further(values),
    )


def _further(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return means that not every evaluation has, by the head of their column: Dice of volumes, and surface distances.

    Distances are those of volumes where there are volumes, in millimetres if the spacing of each is known.
    """
    unit = "pixels"
    metrics = {"HD95": "hd95", "ASSD": "assd"}
    found: dict[str, float] = {}
    if "volume_dice" in values:
        found["Dice, volumes"] = 100 * float(np.mean(values["volume_dice"]))
        known = len(values.get("volume_hd95_mm", ())) == len(values.get("volume_hd95_voxels", ()))
        unit = "mm" if known else "voxels"
        metrics = {name: f"volume_{metric}_{unit}" for name, metric in metrics.items()}
    distances = {
        f"{name}, {unit}": float(np.mean(values[metric]))
        for name, metric in metrics.items()
        if metric in values
    }
    return found | distances


def scores_table(rows: Sequence[SiteRow], title: str) -> "Table":
    """Return a rich table; the best Dice or accuracy of each site is bold."""
    from rich.markup import escape
    from rich.table import Table

    regions = list(rows[0].by_region) if rows else []
    several = len(regions) > 1
    notes = [f"{name} is a reconstruction" for name in reconstructions(row.method for row in rows)]
    table = Table(
        title=escape(title), title_justify="left", caption="; ".join(notes) or None, caption_justify="left"
    )
    for name in ("site", "method"):
        table.add_column(name)
    classified = any(row.interval for row in rows)
    scores = (
        ("accuracy", "95 % interval") if classified else ("Dice", *(regions if several else []), "E", "S")
    )
    further = list(dict.fromkeys(name for row in rows for name in row.further))
    for name in ("images", *scores, *further, "ms/image"):
        table.add_column(escape(name), justify="right")
    for site in dict.fromkeys(row.site for row in rows):
        group = [row for row in rows if row.site == site]
        best = max(row.dice for row in group)
        for row in group:
            dice = (
                f"[bold]{row.dice:.1f}[/bold]" if row.dice == best and len(group) > 1 else f"{row.dice:.1f}"
            )
            parts = [f"{row.by_region[region]:.1f}" for region in regions] if several else []
            values = [f"{row.alignment:.1f}", f"{row.structure:.1f}"]
            if row.interval:
                values = [f"{row.interval[0]:.1f} to {row.interval[1]:.1f}"]
            name = escape(row_label(row.method, row.views, row.statistics))
            values += [f"{row.further[head]:.1f}" if head in row.further else "" for head in further]
            milliseconds = f"{row.milliseconds:.1f}"
            table.add_row(escape(site), name, str(row.images), dice, *parts, *values, milliseconds)
        table.add_section()
    return table
