"""One page over many runs, from their published records, with what is known of each: verified or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ttdg.bench.results import read_table
from ttdg.bench.verify import verification_state
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.report.aggregate import groups, image_dice, in_group, reduced, with_settings
from ttdg.report.comparison import comparison_table, remarks
from ttdg.report.formats import markdown
from ttdg.report.html import render_html
from ttdg.report.tables import Cell, ReportTable, score_table, with_notes

KEPT = ("Δ Dice", "95 % interval over transfers", "p, transfers", "images harmed, %", "targets worse", "worst target",
        "ms/image")  # fmt: skip


@dataclass(frozen=True)
class Leaderboard:
    name: str
    state: str
    views: tuple[ReportTable, ...]


def write_leaderboard(folders: Sequence[Path], out: Path) -> list[Path]:
    """`leaderboard.md` and `leaderboard.html`: every method of every run, best mean Dice first."""
    found = [folder for root in folders for folder in _runs(root)]
    if not found:
        raise UserError(
            f"no records under {', '.join(map(str, folders))}: `ttdg report RUN --pack FOLDER` writes some"
        )
    boards = [build_leaderboard(folder) for folder in found]
    parts = [f"## {b.name}\n\n{b.state}\n\n{markdown(b.views)}" for b in boards]
    write_text(out / "leaderboard.md", "\n".join(["# Leaderboard\n", *parts]))
    write_text(out / "leaderboard.html", render_html("leaderboard.html", boards=boards))
    return [out / "leaderboard.md", out / "leaderboard.html"]


def build_leaderboard(folder: Path) -> Leaderboard:
    table = read_table(folder)
    means, images = with_settings(table, reduced(table)), image_dice(table)
    views = []
    for group in groups(table):
        mine = in_group(means, group)
        scores = score_table(mine, group, "dice")
        ranked = _ranked(scores, comparison_table(table, mine, in_group(images, group), group))
        views.append(with_notes(ranked, remarks(table, group.batch)))
    return Leaderboard(table.run.name, verification_state(folder, table), tuple(views))


def _ranked(scores: ReportTable, against: ReportTable) -> ReportTable:
    """Mean Dice beside what may be concluded of it, best first."""
    columns = [against.header.index(name) for name in KEPT]
    beside = {row[0].text: tuple(row[c] for c in columns) for row in against.rows}
    lines = sorted(scores.rows, key=lambda row: -(row[-1].value or 0))
    rows = tuple((row[0], row[-1], *beside.get(row[0].text, (Cell(""),) * len(KEPT))) for row in lines)
    return ReportTable(scores.title, ("method", "mean Dice", *KEPT), rows, against.note)


def _runs(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob("run.json"))
