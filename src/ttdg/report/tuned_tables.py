"""The options that were chosen for a run's tuned rows, as a table."""

from collections.abc import Mapping

from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable
from ttdg.report.aggregate import column_name
from ttdg.report.tables import Cell, ReportTable

NOTE = (
    "options chosen for each source model of the first seed on simulated hospitals made of held-out source images, "
    "and used for all seeds; methods that are not listed have nothing to choose, or their row says its options"
)


def tuned_tables(table: RunTable) -> list[ReportTable]:
    """A table for each experiment with tuned rows: methods by splits."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for entry in table.run.entries:
        job = table.run.jobs[entry.job]
        if entry.job in table.about and isinstance(job, Scoring) and job.tuning:
            options = table.about[entry.job]["options"]
            text = ", ".join(f"{name} {_short(value)}" for name, value in options.items())
            for target in job.targets:
                split = column_name(entry.protocol, entry.sources, target.name)
                found.setdefault(entry.experiment, {}).setdefault(entry.label, {})[split] = text
    return [_view(experiment, rows) for experiment, rows in found.items()]


def _view(experiment: str, rows: Mapping[str, Mapping[str, str]]) -> ReportTable:
    splits = tuple(dict.fromkeys(split for by_split in rows.values() for split in by_split))
    cells = (
        (Cell(label), *(Cell(by_split.get(split, "–")) for split in splits))
        for label, by_split in rows.items()
    )
    return ReportTable(f"{experiment}: tuned options", ("method", *splits), tuple(cells), NOTE)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
