"""Dice gains over a strongly trained source, from two files in `docs/results`: the table of README.md.

`python docs/_build/strong_gains.py` prints the table; `tests/test_docs.py` compares it with README.md.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gains import interval
from methods_page import table

RESULTS = Path(__file__).parents[1] / "results"
ROWS = {  # method of `learn-first-seed.csv`, or arm and answer of `learn-arms.csv` → label in the table
    ("universe", "chosen, three sizes"): "`universe`",
    ("universe, random universe", "chosen, three sizes"): "`universe`, random universe",
    "self-training": "`self-training`",
    "judge": "`judge`",
    "flip averaging": "flip averaging",
}
COLUMNS = [(benchmark, several) for benchmark in ("polyp", "fundus") for several in (False, True)]


def read(name: str) -> list[dict[str, str]]:
    """The rows of a file."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def found() -> Iterator[tuple[object, dict[str, str]]]:
    """Every row of the folder stream with its key in `ROWS`."""
    for row in read("learn-first-seed.csv"):
        if row["stream"] == "folder":
            yield row["method"], row
    for row in read("learn-arms.csv"):
        yield (row["arm"], row["answer"]), row


def strong_gains_table() -> str:
    """Methods by settings; the Dice of the source is in the headings."""
    values: dict[tuple[object, str, bool], list[dict[str, str]]] = {}
    for key, row in found():
        values.setdefault((key, row["benchmark"], "+" in row["sources"]), []).append(row)
    header = [
        f"{benchmark}, {'several' if several else 'one source'} "
        f"({np.mean([float(row['dice']) for row in values['source', benchmark, several]]):.1f})"
        for benchmark, several in COLUMNS
    ]
    rows = []
    for key, label in ROWS.items():
        columns = [values[key, benchmark, several] for benchmark, several in COLUMNS]
        cells = [interval([float(row["gain"]) for row in column]) for column in columns]
        worst = min(float(row["gain"]) for column in columns for row in column)
        losing = [float(row["share_losing_5"]) for column in columns[:2] for row in column]
        rows.append((label, *cells, f"{worst:+.1f}".replace("-", "−"), f"{np.mean(losing):.1f} %"))
    return table(
        ("method", *header, "worst of 25 transfers", "polyp images that lose more than 5 Dice"), rows
    )


if __name__ == "__main__":
    print(strong_gains_table())
