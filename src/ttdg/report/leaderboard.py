"""A leaderboard of several runs, by benchmark, access and stream, from published records.

Every table ranks the methods of one access. The controls stand in all tables of their experiment without a rank, and so
do methods that are post hoc.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttdg.bench.jobs import Training
from ttdg.bench.results import RunTable, has_records, read_table
from ttdg.bench.verification.outcome import verification_state
from ttdg.errors import UserError
from ttdg.evaluation.records import PRIMARY
from ttdg.files import write_text
from ttdg.report.access import ACCESS, POST_HOC, Facts, rivals, row_facts
from ttdg.report.aggregate import (
    distinct_values,
    image_dice,
    join_settings,
    mean_scores,
    select_group,
    table_groups,
)
from ttdg.report.comparison import comparison_table, in_words_of_task, row_notes
from ttdg.report.controls import CONTROL_INTERVAL, GAIN, HARM, INTERVAL, OVER_CONTROL, P_TRANSFERS
from ttdg.report.formats import escape_markdown, to_markdown
from ttdg.report.gap import ceiling_dice, method_gaps, with_share
from ttdg.report.rendering import render_html
from ttdg.report.tables import PARTIAL as MISSING
from ttdg.report.tables import Cell, ReportTable, score_table, with_notes

SPEED = "ms/image"
PARTIAL = "partial"  # the place of a row that lacks a transfer
OTHER_MODEL = "other model"  # the place of a row whose source model is not that of the baseline
KEPT = (
    GAIN,
    INTERVAL,
    OVER_CONTROL,
    CONTROL_INTERVAL,
    P_TRANSFERS,
    *HARM,
    SPEED,
)  # if the comparison has them


@dataclass(frozen=True)
class Leaderboard:
    """The ranked tables of one benchmark, access and stream."""

    benchmark: str
    access: str
    stream: str
    views: tuple[ReportTable, ...]

    @property
    def title(self) -> str:
        """The heading of its section."""
        return f"{self.benchmark}: {self.access}, {self.stream}"


def write_leaderboard(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write `leaderboard.md` and `leaderboard.html` for all runs below these folders, largest gain first."""
    runs = [folder for root in folders for folder in _runs(root) if has_records(folder)]
    if not runs:
        raise UserError(
            f"no records under {', '.join(map(str, folders))}; pack the records of a run into such a folder first"
        )
    boards = build_leaderboards(runs)
    parts = [f"## {escape_markdown(board.title)}\n\n{to_markdown(board.views)}" for board in boards]
    write_text(out / "leaderboard.md", "\n".join(["# Leaderboard\n", *parts]))
    write_text(out / "leaderboard.html", render_html("leaderboard.html", boards=boards))
    return [out / "leaderboard.md", out / "leaderboard.html"]


def build_leaderboards(folders: Sequence[Path]) -> list[Leaderboard]:
    """Rank the methods of all runs; the boards are sorted by benchmark, access and stream."""
    found: dict[tuple[str, str, str], list[ReportTable]] = {}
    for folder in folders:
        table = read_table(folder)
        for access, stream, view in _ranked_tables(table, verification_state(folder, table)):
            found.setdefault((_benchmark(table), access, stream), []).append(view)
    keys = sorted(found, key=lambda key: (key[0], ACCESS.index(key[1]), key[2]))
    return [Leaderboard(*key, tuple(found[key])) for key in keys]


def _ranked_tables(table: RunTable, state: str) -> Iterator[tuple[str, str, ReportTable]]:
    """Yield the access, the stream and the ranking of each group of tables and each access with a ranked row."""
    means, images, baseline = join_settings(table, mean_scores(table)), image_dice(table), table.run.baseline
    ceilings = ceiling_dice(table)
    for group in table_groups(table):
        mine, my_images = select_group(means, group), select_group(images, group)
        facts = row_facts(table, group.experiment)
        metric = next(name for name in PRIMARY if name in distinct_values(mine, "metric"))
        scores = score_table(mine, group, metric, rivals(facts))
        against = comparison_table(table, mine, my_images, group, facts)
        gaps = method_gaps(my_images, ceilings, baseline)
        for access in ACCESS:
            ranked = _rank(scores, against, facts, access, f"{table.run.name}, {scores.title}", state)
            if any(not facts[row[0].text].control for row in ranked.rows):
                ranked = with_share(ranked, gaps, baseline, ranked.header.index(SPEED))
                ranked = with_notes(ranked, row_notes(table, group.batch))
                yield access, group.stream, in_words_of_task(ranked, table)


def _rank(
    scores: ReportTable, against: ReportTable, facts: Facts, access: str, title: str, state: str
) -> ReportTable:
    """Join rank, mean Dice and the comparison of the rows of one access and of the controls, largest gain first.

    The gain over the baseline ranks, because it compares the same models and images. A row with another source model
    than the baseline has no rank. A row that lacks a transfer of the table has no rank and comes last. The rank of a
    row that lacks seeds is marked.
    """
    columns = [against.header.index(name) for name in KEPT if name in against.header]
    beside = {row[0].text: row for row in against.rows}
    gain = against.header.index(GAIN)
    mine = [row for row in scores.rows if facts[row[0].text].control or facts[row[0].text].access == access]

    def order(row: tuple[Cell, ...]) -> tuple[bool, float, float]:
        return row[-1].value is None, -(beside[row[0].text][gain].value or 0.0), -(row[-1].value or 0.0)

    rows, rank = [], 0
    for row in sorted(mine, key=order):
        name, mean = row[0], row[-1]
        fact, partial = facts[name.text], mean.value is None
        reasons = {
            "control": fact.control, POST_HOC: fact.post_hoc, OTHER_MODEL: fact.other_model, PARTIAL: partial
        }  # fmt: skip
        unranked = next((reason for reason, holds in reasons.items() if holds), None)
        rank += unranked is None
        place = unranked or f"{rank}{MISSING if mean.text.endswith(MISSING) else ''}"
        others = (beside[name.text][c] for c in columns)
        rows.append((name, Cell(place), replace(mean, best=place == "1"), *others))
    header = ("method", "rank", "mean Dice", *(against.header[c] for c in columns))
    notes = [f"these records are {state}", against.note]
    if any(row[1].text == PARTIAL for row in rows):
        notes.insert(1, f"{PARTIAL}: lacks a transfer of this table, so that its gain is that at the others")
    if any(row[1].text.endswith(MISSING) for row in rows):
        notes.insert(
            1, f"{MISSING} lacks seeds of this table, so that its rank is by its gain with the others"
        )
    return ReportTable(title, header, tuple(rows), "; ".join(notes))


def _benchmark(table: RunTable) -> str:
    names = (job.benchmark.get("name") for job in table.run.jobs.values() if isinstance(job, Training))
    return str(next(names, None) or "benchmark without a name")


def _runs(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob("run.json"))
