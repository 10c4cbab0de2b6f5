"""Compare the records of two runs of the same benchmark, as Markdown.

    python experiments/rerun.py before/docs/records/polyp-methods docs/records/polyp-methods

Scorings that both runs have (same job, options and model weights) are compared image by image. GPUs add gradients in
a varying order, and some methods amplify the resulting differences in the last bit.
"""

import argparse
from pathlib import Path

import polars as pl

from ttdg.bench.jobs import Scoring
from ttdg.bench.results import RunTable, read_table

IMAGE = ["job", "target", "site", "case", "region"]


def dice(table: RunTable, name: str) -> pl.DataFrame:
    """Return the Dice of every image and region as column `name`."""
    rows = table.rows.with_columns(pl.col(*IMAGE, "metric").cast(pl.String))
    return rows.filter(pl.col("metric") == "dice").select(*IMAGE, pl.col("value").alias(name))


def shared(before: RunTable, after: RunTable) -> pl.DataFrame:
    """Return job, method and batch of the scorings that both runs made with the same options and model."""
    lines = []
    for key in before.about.keys() & after.about.keys():
        job, old, new = after.run.jobs[key], before.about[key], after.about[key]
        if isinstance(job, Scoring) and (old["options"], old["model"]) == (new["options"], new["model"]):
            lines.append((key, job.method, job.batch))
    return pl.DataFrame(lines, ["job", "method", "batch"], orient="row")


def compare(before: RunTable, after: RunTable) -> pl.DataFrame:
    """Return the number of scorings, of identical ones, and Dice differences, by method and batch size."""
    paired = dice(before, "old").join(dice(after, "new"), on=IMAGE).join(shared(before, after), on="job")
    difference = 100 * (pl.col("new") - pl.col("old"))
    by_job = paired.group_by("method", "batch", "job").agg(
        (difference == 0).all().alias("same"),
        difference.abs().max().alias("largest"),
        difference.mean().alias("moved"),
    )
    return by_job.group_by("method", "batch").agg(
        pl.len().alias("scorings"), pl.col("same").sum(), pl.col("largest").max(), pl.col("moved").mean(),
        pl.col("moved").abs().max().alias("most"),
    ).sort("batch", "method", descending=[True, False])  # fmt: skip


def main() -> None:
    """Parse the command line and print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    before, after = read_table(options.before), read_table(options.after)
    if not before.about.keys() & after.about.keys():
        parser.error("these runs have no scoring in common; name two runs of the same benchmark")
    models = {
        (about["model"], after.about[key]["model"])
        for key, about in before.about.items()
        if key in after.about
    }
    print(f"{len(models)} models, {sum(old == new for old, new in models)} of them equal bit for bit\n")
    columns = (
        "method",
        "batch",
        "scorings",
        "all equal",
        "an image, at most",
        "a stream, at most",
        "on average",
    )
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|")
    for row in compare(before, after).iter_rows(named=True):
        print(f"| `{row['method']}` | {row['batch']} | {row['scorings']} | {row['same']} | {row['largest']:.2f} "
              f"| {row['most']:.2f} | {row['moved']:+.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
