"""A table in the formats people paste: Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Sequence

from ttdg.report.tables import Cell, ReportTable

ESCAPES = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "^": r"\^{}",
           "{": r"\{", "}": r"\}", "~": r"\~{}"}  # fmt: skip
MATHS = {"±": r"$\pm$", "→": r"$\rightarrow$", "Δ": r"$\Delta$", "φ": r"$\varphi$", "α": r"$\alpha$", "–": "--",
         "≥": r"$\geq$", "λ": r"$\lambda$", "γ": r"$\gamma$", "τ": r"$\tau$", "β": r"$\beta$"}  # fmt: skip


def markdown(views: Sequence[ReportTable]) -> str:
    return "\n\n".join(_markdown(view) for view in views) + "\n"


def _markdown(view: ReportTable) -> str:
    lines = [f"**{view.title}**", "", _line(view.header), "|---" * len(view.header) + "|"]
    lines += [_line([_bold(cell) for cell in row]) for row in view.rows]
    return "\n".join([*lines, *(["", f"_{view.note}_"] if view.note else [])])


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _bold(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.best else cell.text


def latex(views: Sequence[ReportTable]) -> str:
    """Needs booktabs."""
    return "\n\n".join(_latex(view) for view in views) + "\n"


def _latex(view: ReportTable) -> str:
    rows = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in view.rows]
    caption = escaped(view.title + (f". {view.note}" if view.note else ""))
    columns = "l" + "r" * (len(view.header) - 1)
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule", " & ".join(escaped(name) for name in view.header) + r" \\", r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ])  # fmt: skip


def _tex(cell: Cell) -> str:
    text = escaped(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else text


def escaped(text: str) -> str:
    """Plain text as LaTeX shows it."""
    return "".join(ESCAPES.get(letter, MATHS.get(letter, letter)) for letter in text)


def comma_separated(views: Sequence[ReportTable]) -> str:
    """All tables below each other, one line a cell, values unrounded: what a spreadsheet can pivot."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("table", "row", "column", "text", "value", "best"))
    for view in views:
        for row in view.rows:
            for name, cell in zip(view.header[1:], row[1:], strict=True):
                value = "" if cell.value is None else f"{cell.value:.6g}"
                writer.writerow((view.title, row[0].text, name, cell.text, value, int(cell.best)))
    return text.getvalue()
