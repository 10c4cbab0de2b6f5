"""Tables from records, for the terminal and for pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttdg.adaptation import reconstructions
from ttdg.evaluation.old_records import Records

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class SiteRow:
    """One method on one site: means over every image and region, in percent; E is E_φ^max."""

    site: str
    method: str
    images: int
    dice: float
    alignment: float
    structure: float
    by_region: dict[str, float]
    milliseconds: float


def summarise(records: Records) -> list[SiteRow]:
    rows = []
    for site in records.values("site"):
        for method in (here := records.where(site=site)).values("method"):
            rows.append(_row(site, method, here.where(method=method)))
    return rows


def _row(site: str, method: str, records: Records) -> SiteRow:
    regions = records.values("region")
    return SiteRow(
        site,
        method,
        len(records.values("case")),
        100 * records.mean("dice"),
        100 * records.max_alignment(),
        100 * records.mean("structure"),
        {region: 100 * records.where(region=region).mean("dice") for region in regions},
        1000 * records.mean("seconds"),
    )


def scores_table(rows: Sequence[SiteRow], title: str) -> "Table":
    """A rich table, the best Dice of each site in bold."""
    from rich.table import Table

    regions = list(rows[0].by_region) if rows else []
    several = len(regions) > 1
    rebuilt = [f"{name} is a reconstruction" for name in reconstructions(row.method for row in rows)]
    table = Table(
        title=title, title_justify="left", caption="; ".join(rebuilt) or None, caption_justify="left"
    )
    for name in ("site", "method"):
        table.add_column(name)
    for name in ("images", "Dice", *(regions if several else []), "E", "S", "ms/image"):
        table.add_column(name, justify="right")
    for site in dict.fromkeys(row.site for row in rows):
        group = [row for row in rows if row.site == site]
        best = max(row.dice for row in group)
        for row in group:
            dice = (
                f"[bold]{row.dice:.1f}[/bold]" if row.dice == best and len(group) > 1 else f"{row.dice:.1f}"
            )
            parts = [f"{row.by_region[region]:.1f}" for region in regions] if several else []
            values = (f"{row.alignment:.1f}", f"{row.structure:.1f}", f"{row.milliseconds:.1f}")
            table.add_row(site, row.method, str(row.images), dice, *parts, *values)
        table.add_section()
    return table
