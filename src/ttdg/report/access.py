"""What each table row may use of the source, which rows are controls, and tables grouped by access.

Access is what a method needs of the source besides the trained network: nothing ("source-free"), statistics, images,
or labelled images. A control is the source network without adaptation, alone or averaged over views. A method whose
paper trains its parts together with the network, and whose parts are fitted afterwards here, is "post hoc": its row is
shown, but it is never the best of a column and has no rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from ttdg.adaptation import METHODS
from ttdg.adaptation.adapter import Access
from ttdg.adaptation.judge.method import FALLBACK
from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable
from ttdg.bench.run_file import is_baseline
from ttdg.report.tables import Cell, ReportTable, Rivals

ACCESS: tuple[str, ...] = (*get_args(Access), "unknown")  # in the order of the tables
UNKNOWN = "unknown"  # of records of a method that this version does not have
POST_HOC = "post hoc"
ACCESS_NOTE = (
    "access: what the method needs of the source besides the network; the best of each access is marked, without rows "
    "that are post hoc (the paper trains their parts with the network, here they are fitted afterwards)"
)


@dataclass(frozen=True)
class RowFacts:
    """What a table says about a row besides its scores."""

    access: str = UNKNOWN
    post_hoc: bool = False
    control: bool = False
    other_model: bool = False  # its source model is not that of a row of the baseline

    @property
    def text(self) -> str:
        """The cell in the column "access"."""
        return f"{self.access}, {POST_HOC}" if self.post_hoc else self.access


Facts = Mapping[str, RowFacts]  # label of the row → its facts


def row_facts(table: RunTable, experiment: str) -> Facts:
    """Return the facts of all rows of an experiment."""
    entries = (entry for entry in table.run.entries if entry.experiment == experiment)
    jobs = [(entry, job) for entry in entries if isinstance(job := table.run.jobs[entry.job], Scoring)]
    weights = {entry.job: table.about.get(entry.job, {}).get("model") for entry, _ in jobs}
    models: dict[str, set[str | None]] = {}  # training → hashes of weights, of which one may have several
    for entry, job in jobs:
        if is_baseline(entry.label, table.run.baseline):
            models.setdefault(job.training, set()).add(weights[entry.job])
    others = {
        entry.label
        for entry, job in jobs
        if models and _differs(weights[entry.job], models.get(job.training))
    }
    return {entry.label: replace(job_facts(job), other_model=entry.label in others) for entry, job in jobs}


def _differs(weights: str | None, known: set[str | None] | None) -> bool:
    """Return whether weights are none of those that the rows of the baseline have; None is not known."""
    return known is None or (weights is not None and None not in known and weights not in known)


def job_facts(job: Scoring) -> RowFacts:
    """Return the facts of a scoring.

    A judge that always answers with its fallback is the source network averaged over flips, whatever it was fitted to.
    The gate needs a judge, which is fitted to labelled source images.
    """
    if job.method == "judge" and job.options.get("always") == FALLBACK:
        return RowFacts("source-free", control=True)
    method = METHODS.get(job.method)
    if method is None:
        return RowFacts()
    access = METHODS["judge"].access if job.gate else method.access
    return RowFacts(access, method.post_hoc, job.method == "source")


def order_by_access(labels: Sequence[str], facts: Facts) -> list[str]:
    """Return the labels grouped by access; the order within a group stays."""
    return sorted(labels, key=lambda label: ACCESS.index(facts.get(label, RowFacts()).access))


def rivals(facts: Facts) -> Rivals:
    """Return the access among whose rows each row may be the best; None for a row that is post hoc."""
    return {label: None if fact.post_hoc else fact.access for label, fact in facts.items()}


def with_access(view: ReportTable, facts: Facts) -> ReportTable:
    """Group the rows by access, and say it in a column behind the name of the row."""
    rows = {row[0].text: row for row in view.rows}
    grouped = tuple(
        (rows[label][0], Cell(facts.get(label, RowFacts()).text), *rows[label][1:])
        for label in order_by_access(list(rows), facts)
    )
    return replace(view, header=(view.header[0], "access", *view.header[1:]), rows=grouped)
