"""Writing a report: tables in all formats, the HTML page, and the curves."""

import json
from pathlib import Path

from ttdg.bench.results import RunTable
from ttdg.bench.verification.outcome import VERIFICATION_FILE, rows_digest, verified_records
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.report.comparison import report_tables
from ttdg.report.figures.write import write_curves
from ttdg.report.formats import to_csv, to_latex, to_markdown
from ttdg.report.html import write_html


def write_report(table: RunTable, run: Path, out: Path, pictures: float = 60.0) -> list[Path]:
    """Write all tables as Markdown, LaTeX, CSV and HTML, and return the paths of the files.

    Args:
        table: The run.
        run: Folder of the run.
        out: Folder for the report.
        pictures: Seconds that drawing the worst cases may take.
    """
    tables = report_tables(table)
    texts = {
        "tables.md": to_markdown(tables),
        "tables.tex": to_latex(tables),
        "tables.csv": to_csv(tables),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    page = write_html(out / "report.html", table, tables, run, pictures)
    return [*(out / name for name in texts), page, *write_curves(table, out / "figures")]


def pack_verification(table: RunTable, run: Path, folder: Path) -> list[Path]:
    """Copy the result of a verification beside packed records if these rows, or records of them, were verified."""
    try:
        text = (run / VERIFICATION_FILE).read_text(encoding="utf-8")
        same_rows = json.loads(text)["digest"] == rows_digest(table)
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not same_rows and not verified_records(run, table):
        return []
    write_text(folder / VERIFICATION_FILE, text)
    return [folder / VERIFICATION_FILE]


def insert_tables(path: Path, name: str, tables: str) -> None:
    """Replace the text between the two marks of a run in a Markdown file."""
    begin, end = f"<!-- ttdg report {name} -->", f"<!-- end of ttdg report {name} -->"
    try:
        text = path.read_text(encoding="utf-8")
        before, rest = text.split(begin)
        _, after = rest.split(end)
    except (OSError, ValueError):
        raise UserError(
            f"{path} must contain the lines {begin} and {end} once each; add them where the tables belong"
        ) from None
    write_text(path, f"{before}{begin}\n\n{tables}\n{end}{after}")
