"""Tables of the options that were chosen for tuned rows, with the length and the spread of the searches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttdg.bench.jobs import Scoring, Tuning
from ttdg.bench.protocols import STREAMS
from ttdg.bench.results import RunTable
from ttdg.evaluation.tuned_options import indistinguishable, recorded_spread, searches
from ttdg.report.aggregate import column_name
from ttdg.report.tables import Cell, ReportTable

NOTE = (
    "options chosen for each source model of the first seed on simulated hospitals made of held-out source images, "
    "and used for all seeds; methods that are not listed have nothing to choose, or their row says its options"
)
SPREAD = "in brackets: the best minus the worst Dice of all configurations that were tried"
ALIKE, EDGE = "≈", "›"  # marks behind a spread, explained by the note of a table that has them
MARKS: Mapping[str, str] = {
    ALIKE: "not distinguishable: the spread is at most its standard error, paired by image",
    EDGE: "the best value still lies at an edge of the values tried",
}


@dataclass
class _TunedGroup:
    """The tuned rows of one table: experiment, stream and batch size."""

    cells: dict[str, dict[str, str]] = field(default_factory=dict)  # row → split → text
    tunings: set[str] = field(default_factory=set)  # keys of the searches


def tuned_tables(table: RunTable) -> list[ReportTable]:
    """Return a table of methods by splits for each experiment, stream and batch size with tuned rows."""
    groups: dict[tuple[str, str, int], _TunedGroup] = {}
    found: Mapping[str, Mapping[str, Any]] | None = None
    for entry in table.run.entries:
        job = table.run.jobs[entry.job]
        if entry.job in table.about and isinstance(job, Scoring) and job.tuning:
            if found is None:
                found = searches(table.folder) if table.folder else {}
            group = groups.setdefault((entry.experiment, job.stream, job.batch), _TunedGroup())
            group.tunings.add(job.tuning)
            text = _options_text(table.about[entry.job]["options"])
            if job.tuning in found:
                text += f" ({_spread_text(found[job.tuning])})"
            for target in job.targets:
                split = column_name(entry.protocol, entry.sources, target.name)
                group.cells.setdefault(entry.label, {})[split] = text
    return [_options_table(_title(name, groups), group, table, found or {}) for name, group in groups.items()]


def _title(name: tuple[str, str, int], groups: Iterable[tuple[str, str, int]]) -> str:
    """Return the title of a table; it names stream and batch size if the experiment has several tables."""
    experiment, stream, batch = name
    several = sum(other == experiment for other, *_ in groups) > 1
    return f"{experiment}: tuned options" + (f" ({STREAMS[stream]}; batch {batch})" if several else "")


def _options_table(
    title: str, group: _TunedGroup, table: RunTable, found: Mapping[str, Mapping[str, Any]]
) -> ReportTable:
    splits = tuple(dict.fromkeys(split for by_split in group.cells.values() for split in by_split))
    rows = tuple(
        (Cell(label), *(Cell(by_split.get(split, "–")) for split in splits))
        for label, by_split in group.cells.items()
    )
    tunings = [job for key in group.tunings if isinstance(job := table.run.jobs[key], Tuning)]
    recorded = [found[key] for key in group.tunings if key in found]
    shown = " ".join(cell.text for row in rows for cell in row[1:])
    marks = [f"{mark} {words}" for mark, words in MARKS.items() if mark in shown]
    notes = [NOTE, _length_note(tunings, recorded), *([SPREAD] if recorded else []), *marks]
    return ReportTable(title, ("method", *splits), rows, "; ".join(notes))


def _length_note(tunings: Sequence[Tuning], recorded: Sequence[Mapping[str, Any]]) -> str:
    """Say how many hospitals the searches had, how long their streams were, and how many images were different."""
    hospitals, asked, batches = (
        _range_text([job.search[name] for job in tunings]) for name in ("hospitals", "images", "batch")
    )
    lengths = [count for search in recorded for count in search.get("found", {}).values()]
    distinct = [count for search in recorded for count in search.get("distinct", {}).values()]
    images = _range_text(lengths) if lengths else f"at most {asked}"
    words = f"tuning streams: {hospitals} hospitals, {images} images each"
    words += f" ({_range_text(distinct)} of them different)" if distinct else ""
    return f"{words}, at batch {batches}"


def _range_text(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _spread_text(search: Mapping[str, Any]) -> str:
    marks = (ALIKE if indistinguishable(search) else "") + (EDGE if search.get("edge") else "")
    return f"{recorded_spread(search):.2f}" + (f" {marks}" if marks else "")


def _options_text(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in options.items()
    )
