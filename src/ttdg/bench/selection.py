"""A piece of a run: the scorings of some seeds, rows and targets, with the jobs that they need."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ttdg.bench.jobs import Job, Scoring, with_required
from ttdg.bench.run_file import TableEntry, is_baseline
from ttdg.errors import UserError, suggestion


@dataclass(frozen=True)
class Piece:
    """What is run now of a plan; an empty field selects everything.

    Attributes:
        seeds: Training seeds.
        rows: Labels of table rows; a name that is no label selects all rows of that method. The baseline is always run,
            because every gain refers to it.
        targets: Sites that are scored.
    """

    seeds: tuple[int, ...] = ()
    rows: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


EVERYTHING = Piece()


def select_jobs(
    jobs: Mapping[str, Job], entries: Iterable[TableEntry], piece: Piece, baseline: str
) -> dict[str, Job]:
    """Return the jobs of a piece; a seed, row or target that the plan does not have raises a UserError."""
    planned = [(entry, job) for entry in entries if isinstance(job := jobs[entry.job], Scoring)]
    labels = {entry.label for entry, _ in planned}
    rows, methods = {*piece.rows} & labels, {*piece.rows} - labels
    selected = [
        entry.job
        for entry, job in planned
        if (not piece.seeds or job.seed in piece.seeds)
        and (
            not piece.rows
            or is_baseline(entry.label, baseline)
            or entry.label in rows
            or job.method in methods
        )
        and (not piece.targets or {target.name for target in job.targets} & {*piece.targets})
    ]
    _check("seed", map(str, piece.seeds), planned, lambda _, job: [str(job.seed)])
    _check("row", piece.rows, planned, lambda entry, job: [entry.label, job.method])
    _check("target", piece.targets, planned, lambda _, job: [target.name for target in job.targets])
    return with_required(jobs, selected)


def _check(
    kind: str,
    wanted: Iterable[str],
    planned: Collection[tuple[TableEntry, Scoring]],
    names: Callable[[TableEntry, Scoring], list[str]],
) -> None:
    known = list(dict.fromkeys(name for entry, job in planned for name in names(entry, job)))
    for name in wanted:
        if name not in known:
            raise UserError(f"the plan has no {kind} {name!r}{suggestion(name, known)}")
