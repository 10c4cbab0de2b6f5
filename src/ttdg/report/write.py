"""`ttdg report`: every format of a run's tables, and the page."""

import json
from pathlib import Path

from ttdg.bench.results import RunTable
from ttdg.bench.verify import FILE, rows_digest
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.report.comparison import report_tables
from ttdg.report.figures.write import write_curves
from ttdg.report.formats import comma_separated, latex, markdown
from ttdg.report.html import write_html


def write_report(table: RunTable, run: Path, out: Path, pictures: float = 60.0) -> list[Path]:
    """The same tables in every format; each file is a function of the records."""
    tables = report_tables(table)
    texts = {
        "tables.md": markdown(tables),
        "tables.tex": latex(tables),
        "tables.csv": comma_separated(tables),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    page = write_html(out / "report.html", table, tables, run, pictures)
    return [*(out / name for name in texts), page, *write_curves(table, out / "figures")]


def pack_verification(table: RunTable, run: Path, folder: Path) -> list[Path]:
    """What `ttdg verify` found, beside the packed records, where it was found of these very rows."""
    try:
        text = (run / FILE).read_text(encoding="utf-8")
        of_these = json.loads(text)["digest"] == rows_digest(table)
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not of_these:
        return []
    write_text(folder / FILE, text)
    return [folder / FILE]


def insert(path: Path, name: str, tables: str) -> None:
    """Put tables into a text between two marks, in place of what stands there."""
    begin, end = f"<!-- ttdg report {name} -->", f"<!-- end of ttdg report {name} -->"
    try:
        text = path.read_text(encoding="utf-8")
        before, rest = text.split(begin)
        _, after = rest.split(end)
    except (OSError, ValueError):
        raise UserError(
            f"{path} lacks the lines {begin} and {end}, once each; write them where the tables go"
        ) from None
    write_text(path, f"{before}{begin}\n\n{tables}\n{end}{after}")
