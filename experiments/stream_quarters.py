"""Gain over `source` in each quarter of an online stream, as Markdown.

    python experiments/stream_quarters.py docs/records/learn-polyp --only "online, one source"

Input: packed records of `ttdg bench`, whose images are in the order of the stream. Cells are means over transfers.
"""

import argparse
from pathlib import Path

import polars as pl
from transfer_records import from_records

TRANSFER = ["sources", "target", "seed"]


def quarters(images: pl.DataFrame) -> pl.DataFrame:
    """Return the mean gain of each method (rows) in each quarter of its streams (columns)."""
    source = images.filter(pl.col("method") == "source").select(*TRANSFER, "case", base="dice")
    number, count = pl.int_range(pl.len()).over("method", *TRANSFER), pl.len().over("method", *TRANSFER)
    placed = images.with_columns(quarter=4 * number // count + 1)
    paired = placed.join(source, on=[*TRANSFER, "case"]).filter(pl.col("method") != "source")
    streams = paired.group_by("method", "quarter", *TRANSFER, maintain_order=True).agg(
        gain=(pl.col("dice") - pl.col("base")).mean()
    )
    means = streams.group_by("method", "quarter", maintain_order=True).agg(pl.col("gain").mean())
    return means.pivot("quarter", index="method", values="gain")


def main() -> None:
    """Parse the command line and print a table for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument(
        "--only", action="append", default=[], help="use only this experiment; may be repeated"
    )
    options = parser.parse_args()
    for folder in options.records:
        print(f"\n**{folder.name}**\n\n| method | 1 | 2 | 3 | 4 |\n|---|---|---|---|---|")
        for method, *gains in quarters(from_records(folder, options.only).images).rows():
            print(f"| {method} | {' | '.join(f'{gain:+.1f}' for gain in gains)} |")


if __name__ == "__main__":
    main()
