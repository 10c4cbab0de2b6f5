"""One stream of packed records: the Dice of every image, and the Dice that methods predict for their own answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ttdg.bench.results import SETTING_COLUMNS, read_table, select_experiments
from ttdg.report.aggregate import IMAGE_COLUMNS, image_dice, join_settings
from ttdg.safety.review import COVERED

KEYS = [*SETTING_COLUMNS, *IMAGE_COLUMNS]


@dataclass(frozen=True)
class Benchmark:
    """Dice of every image, and the Dice that methods predict for their own answers.

    Attributes:
        images: Columns KEYS and dice, in percent.
        predicted: Columns KEYS, expected and half_width, for methods that predict their Dice.
    """

    images: pl.DataFrame
    predicted: pl.DataFrame


def from_records(
    folder: Path,
    experiments: Sequence[str],
    stream: str = "online",
    between: float = 0.0,
    both_judges: bool = False,
    seed: int | None = None,
) -> Benchmark:
    """Read one stream of the named experiments of a run; no names means all, and no seed all seeds.

    `between` is the standard deviation between sites that is added to the intervals. With `both_judges` the predicted
    Dice of `universe` is averaged with that of `judge`.
    """
    table = read_table(folder)
    table = select_experiments(table, experiments) if experiments else table
    metric = pl.col("metric").cast(pl.String)
    predicted = table.rows.with_columns(metric).filter(metric.is_in(["expected", "half_width"]))
    wide = predicted.pivot("metric", index=["job", *IMAGE_COLUMNS], values="value")
    if "half_width" in wide.columns:
        widened = (pl.col("half_width") ** 2 + (COVERED * between) ** 2).sqrt()
        wide = wide.with_columns(half_width=widened)
    here = pl.col("stream") == stream
    if seed is not None:
        here &= pl.col("seed").cast(pl.String) == str(seed)
    expected = join_settings(table, wide).filter(here)
    return Benchmark(image_dice(table).filter(here), average_judges(expected) if both_judges else expected)


def average_judges(predicted: pl.DataFrame) -> pl.DataFrame:
    """Average the predicted Dice and interval of `universe` with those of `judge`."""
    values, rows = ["expected", "half_width"], [key for key in KEYS if key != "method"]
    is_universe = pl.col("method") == "universe"
    judge = predicted.filter(pl.col("method") == "judge").select(*rows, *values)
    both = predicted.filter(is_universe).join(judge, on=rows, suffix="_judge")
    mean = both.with_columns((pl.col(value) + pl.col(f"{value}_judge")) / 2 for value in values)
    return pl.concat([predicted.filter(~is_universe), mean.select(predicted.columns)])
