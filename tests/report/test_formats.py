"""Tables as Markdown, LaTeX and CSV."""

import csv
import io

from ttdg.report.formats import escape_latex, escape_markdown, to_csv, to_latex, to_markdown
from ttdg.report.tables import Cell, ReportTable


def test_formats_hold_the_same_cells():
    view = ReportTable(
        "a_b: Dice", ("method", "x → y"), ((Cell("tent"), Cell("81.2 ± 0.3", 81.24, True)),), "50 % of"
    )
    assert "| tent | **81.2 ± 0.3** |" in to_markdown([view])
    text = to_latex([view])
    assert r"tent & \textbf{81.2 $\pm$ 0.3} \\" in text
    assert r"\caption{a\_b: Dice. 50 \% of}" in text
    (line,) = csv.DictReader(io.StringIO(to_csv([view])))
    assert (line["row"], line["column"], line["value"], line["best"]) == ("tent", "x → y", "81.24", "1")
    assert escape_latex("a&b_{c}") == r"a\&b\_\{c\}"


def test_html_in_names_is_text_in_markdown():
    name = "<img src=x onerror=alert(1)>"
    table = ReportTable(
        f"{name}: Dice", ("method", name), ((Cell(name), Cell("1", 1.0, True)),), f"note {name}"
    )
    text = to_markdown([table])
    assert "<img" not in text
    assert text.count("&lt;img src=x onerror=alert(1)>") == 4


def test_only_what_markdown_would_take_for_html_is_escaped():
    assert escape_markdown("p < 0.001, R&D, a<b and &amp; <!-- end -->") == (
        "p < 0.001, R&D, a&lt;b and &amp;amp; &lt;!-- end -->"
    )
    assert escape_markdown("two\nlines") == "two lines"
