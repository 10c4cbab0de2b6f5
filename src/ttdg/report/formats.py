"""Tables as Markdown, LaTeX and CSV text."""

import csv
import io
import re
from collections.abc import Sequence

from ttdg.report.tables import Cell, ReportTable

ESCAPES = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "^": r"\^{}",
           "{": r"\{", "}": r"\}", "~": r"\~{}"}  # fmt: skip
MATHS = {"±": r"$\pm$", "→": r"$\rightarrow$", "Δ": r"$\Delta$", "φ": r"$\varphi$", "α": r"$\alpha$", "–": "--",
         "−": "$-$", "≥": r"$\geq$", "λ": r"$\lambda$", "γ": r"$\gamma$", "τ": r"$\tau$", "β": r"$\beta$",
         "≈": r"$\approx$", "›": r"$>$"}  # fmt: skip


def to_markdown(tables: Sequence[ReportTable]) -> str:
    """Return the tables as Markdown, each with its title and note."""
    return "\n\n".join(_markdown(table) for table in tables) + "\n"


def _markdown(table: ReportTable) -> str:
    lines = [f"**{escape_markdown(table.title)}**", "", _markdown_line(table.header)]
    lines.append("|---" * len(table.header) + "|")
    lines += [
        _markdown_line([f"**{cell.text}**" if cell.best else cell.text for cell in row]) for row in table.rows
    ]
    return "\n".join([*lines, *(["", f"_{escape_markdown(table.note)}_"] if table.note else [])])


def _markdown_line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(escape_markdown(text).replace("|", "\\|") for text in texts) + " |"


def escape_markdown(text: str) -> str:
    """Escape HTML tags, comments and entities, which Markdown would pass on, and put the text on one line."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(text.split("\n")))
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def to_latex(tables: Sequence[ReportTable]) -> str:
    """Return the tables as LaTeX, which needs the package booktabs."""
    return "\n\n".join(_latex(table) for table in tables) + "\n"


def _latex(table: ReportTable) -> str:
    rows = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows]
    caption = escape_latex(table.title + (f". {table.note}" if table.note else ""))
    columns = "l" + "r" * (len(table.header) - 1)
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule", " & ".join(escape_latex(name) for name in table.header) + r" \\", r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else text


def escape_latex(text: str) -> str:
    """Return LaTeX that prints the text; symbols such as ± become mathematics."""
    return "".join(ESCAPES.get(letter, MATHS.get(letter, letter)) for letter in text)


def to_csv(tables: Sequence[ReportTable]) -> str:
    """Return all tables as one CSV text with a line per cell and unrounded values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("table", "row", "column", "text", "value", "best"))
    for table in tables:
        for row in table.rows:
            for name, cell in zip(table.header[1:], row[1:], strict=True):
                value = "" if cell.value is None else f"{cell.value:.6g}"
                writer.writerow((table.title, row[0].text, name, cell.text, value, int(cell.best)))
    return text.getvalue()
