"""A leaderboard of several runs, from their published records, with the state of their verification."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.results import read_table
from ttdg.bench.verification import verification_state
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.report.aggregate import image_dice, join_settings, mean_scores, select_group, table_groups
from ttdg.report.comparison import comparison_table, row_notes
from ttdg.report.formats import escape_markdown, to_markdown
from ttdg.report.gap import ceiling_dice, method_gaps, with_share
from ttdg.report.rendering import render_html
from ttdg.report.tables import Cell, ReportTable, score_table, with_notes

KEPT = ("Δ Dice", "95 % interval over transfers", "p, transfers", "images harmed, %", "targets worse", "worst target",
        "ms/image")  # fmt: skip
PLACE = 2 + KEPT.index("ms/image")  # of the share of the gap closed: behind method, mean Dice and the gains


@dataclass(frozen=True)
class Leaderboard:
    """The ranked tables of one run, and whether its records were verified."""

    name: str
    state: str
    views: tuple[ReportTable, ...]


def write_leaderboard(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write `leaderboard.md` and `leaderboard.html` for all runs below these folders, best mean Dice first."""
    runs = [folder for root in folders for folder in _runs(root)]
    if not runs:
        raise UserError(
            f"no records under {', '.join(map(str, folders))}; pack the records of a run into such a folder first"
        )
    boards = [build_leaderboard(folder) for folder in runs]
    parts = [
        f"## {escape_markdown(b.name)}\n\n{escape_markdown(b.state)}\n\n{to_markdown(b.views)}"
        for b in boards
    ]
    write_text(out / "leaderboard.md", "\n".join(["# Leaderboard\n", *parts]))
    write_text(out / "leaderboard.html", render_html("leaderboard.html", boards=boards))
    return [out / "leaderboard.md", out / "leaderboard.html"]


def build_leaderboard(folder: Path) -> Leaderboard:
    """Rank the methods of one run."""
    table = read_table(folder)
    means, images, baseline = join_settings(table, mean_scores(table)), image_dice(table), table.run.baseline
    ceilings, views = ceiling_dice(table), []
    for group in table_groups(table):
        mine, my_images = select_group(means, group), select_group(images, group)
        scores = score_table(mine, group, "dice")
        ranked = _rank(scores, comparison_table(table, mine, my_images, group))
        ranked = with_share(ranked, method_gaps(my_images, ceilings, baseline), baseline, PLACE)
        views.append(with_notes(ranked, row_notes(table, group.batch)))
    return Leaderboard(table.run.name, verification_state(folder, table), tuple(views))


def _rank(scores: ReportTable, against: ReportTable) -> ReportTable:
    """Join mean Dice and the comparison with the baseline, best mean Dice first."""
    columns = [against.header.index(name) for name in KEPT]
    beside = {row[0].text: tuple(row[c] for c in columns) for row in against.rows}
    lines = sorted(scores.rows, key=lambda row: -(row[-1].value or 0))
    rows = tuple((row[0], row[-1], *beside.get(row[0].text, (Cell(""),) * len(KEPT))) for row in lines)
    return ReportTable(scores.title, ("method", "mean Dice", *KEPT), rows, against.note)


def _runs(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob("run.json"))
