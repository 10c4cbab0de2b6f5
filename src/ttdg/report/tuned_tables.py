"""Tables of the options that were chosen for tuned rows."""

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
    """Return a table of methods by splits for each experiment that has tuned rows."""
    chosen: dict[str, dict[str, dict[str, str]]] = {}
    for entry in table.run.entries:
        job = table.run.jobs[entry.job]
        if entry.job in table.about and isinstance(job, Scoring) and job.tuning:
            options = table.about[entry.job]["options"]
            text = ", ".join(f"{name} {_short(value)}" for name, value in options.items())
            for target in job.targets:
                split = column_name(entry.protocol, entry.sources, target.name)
                chosen.setdefault(entry.experiment, {}).setdefault(entry.label, {})[split] = text
    return [_options_table(experiment, rows) for experiment, rows in chosen.items()]


def _options_table(experiment: str, rows: Mapping[str, Mapping[str, str]]) -> ReportTable:
    splits = tuple(dict.fromkeys(split for by_split in rows.values() for split in by_split))
    cells = (
        (Cell(label), *(Cell(by_split.get(split, "–")) for split in splits))
        for label, by_split in rows.items()
    )
    return ReportTable(f"{experiment}: tuned options", ("method", *splits), tuple(cells), NOTE)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
