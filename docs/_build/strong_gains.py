"""Dice gains over a strongly trained source when a whole site is learned, from `docs/records`: the table of README.md.

`python docs/_build/strong_gains.py` prints the table; `tests/test_docs.py` compares it with README.md.
"""

from functools import cache
from pathlib import Path

import numpy as np

from gains import interval
from methods_page import table
from ttdg.bench.results import read_table, select_experiments
from ttdg.report.aggregate import dice_differences, image_dice, transfer_differences

RECORDS = Path(__file__).parents[1] / "records"
BASELINE = "source"
HARM = 5.0  # an image that loses more Dice points is harmed
ROWS = {  # label in the records → label in the table
    "universe": "`universe`",
    "universe, random universe": "`universe`, random universe",
    "self-training": "`self-training`",
    "judge": "`judge`",
    "three sizes and flips": "three sizes and flips",
    "flip averaging": "flip averaging",
}
COLUMNS = [(benchmark, several) for benchmark in ("polyp", "fundus") for several in (False, True)]


@cache
def column(benchmark: str, several: bool) -> tuple[float, dict[str, dict[str, float]], dict[str, float]]:
    """Dice of the source; by row, the gain at each transfer and the percentage of images that are harmed."""
    import polars as pl

    experiment = "folder, several sources" if several else "folder, one source"
    images = image_dice(select_experiments(read_table(RECORDS / f"learn-{benchmark}"), [experiment]))
    source = images.filter(pl.col("method") == BASELINE)
    by_target = source.group_by("sources", "target", "seed").agg(pl.col("dice").mean())
    paired = dice_differences(images, BASELINE)
    found = {label: transfer_differences(paired, label) for label in ROWS}
    gains = {label: {t.name: float(t.by_seed.mean()) for t in part} for label, part in found.items()}
    harmed = {
        label: 100 * float(np.mean([(t.differences < -HARM).mean() for t in part]))
        for label, part in found.items()
    }
    return float(by_target["dice"].mean()), gains, harmed  # type: ignore[arg-type]


def strong_gains_table() -> str:
    """Rows by settings; the Dice of the source is in the headings."""
    columns = {(benchmark, several): column(benchmark, several) for benchmark, several in COLUMNS}
    header = [
        f"{benchmark}, {'several' if several else 'one source'} ({source:.1f})"
        for (benchmark, several), (source, _, _) in columns.items()
    ]
    rows = []
    for key, label in ROWS.items():
        gains = [list(found[key].values()) for _, found, _ in columns.values()]
        polyp = [columns["polyp", several] for several in (False, True)]
        weights = [len(found[key]) for _, found, _ in polyp]
        harmed = np.average([part[key] for _, _, part in polyp], weights=weights)
        worst = f"{min(min(part) for part in gains):+.1f}".replace("-", "−")
        rows.append((label, *(interval(part) for part in gains), worst, f"{harmed:.1f} %"))
    return table(
        ("method", *header, "worst of 25 transfers", "polyp images that lose more than 5 Dice"), rows
    )


if __name__ == "__main__":
    print(strong_gains_table())
