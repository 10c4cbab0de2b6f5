"""Writing a report: tables in all formats, the HTML page, and the curves."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ttdg.bench.results import RunTable
from ttdg.bench.verification.outcome import (
    VERIFICATION_FILE,
    Verification,
    VerifiedRecord,
    read_verification,
    rows_digest,
    verified_records,
    write_verification,
)
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


def pack_verification(table: RunTable, runs: Sequence[Path], folder: Path) -> list[Path]:
    """Write the result of a verification beside packed records if these rows, or records of them, were verified.

    Of several runs, the result is that of the first, with the marks of the records of all.
    """
    digest, results, marks = rows_digest(table), list[Verification](), dict[str, VerifiedRecord]()
    for run in runs:
        result, own = read_verification(run), verified_records(run, table)
        if result is not None and (own or result.digest == digest):
            results.append(result)
            marks = own | marks
    if not results:
        return []
    write_verification(folder, replace(results[0], records=marks))
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
