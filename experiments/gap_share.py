"""The share of the gap to the ceiling that rows of published records close, on the held-out patients of each target.

    python experiments/gap_share.py docs/records/learn-polyp --data $TTDG_DATA/polyp --only "folder, several sources"

The ceiling is a model that was trained on the target's own training patients and scored on its held-out ones. These
records hold no ceiling; `docs/results/ceilings.csv` has the mean Dice of one seed. Gains and gaps are therefore taken
on the images of the same held-out patients, as far as the records scored them. The share is the mean gain over
transfers divided by the mean gap, each the mean over seeds. `ttdg report` computes the share of runs that have an
experiment with the protocol `ceiling`.
"""

import argparse
import csv
from pathlib import Path

import polars as pl
from transfer_records import from_records

from ttdg.data import find_sites
from ttdg.data.sites import split
from ttdg.report.aggregate import dice_differences

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "docs/results/ceilings.csv"
ROWS = ("universe", "self-training", "judge", "three sizes and flips", "flip averaging")


def ceilings(benchmark: str) -> dict[str, float]:
    """Mean Dice of the ceiling by target."""
    with CEILINGS.open(encoding="utf-8") as file:
        return {
            row["target"]: float(row["dice"]) for row in csv.DictReader(file) if row["benchmark"] == benchmark
        }


def held_out_means(images: pl.DataFrame, data: Path) -> pl.DataFrame:
    """Mean gain and mean Dice of the source for each row and transfer, on the held-out images of the target."""
    held = [
        {"target": name, "case": case.name}
        for name, site in find_sites(data).items()
        for case in split(site.cases)[1]
    ]
    paired = dice_differences(images, "source").with_columns(
        pl.col("target", "case", "method").cast(pl.String)
    )
    paired = paired.join(pl.DataFrame(held), on=["target", "case"])
    by_seed = paired.group_by("method", "sources", "target", "seed").agg(
        pl.col("difference", "baseline").mean(), pl.len().alias("images")
    )
    return by_seed.group_by("method", "sources", "target").agg(
        pl.col("difference", "baseline", "images").mean()
    )


def main() -> None:
    """Print the shares of the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, help="packed records of ttdg bench")
    parser.add_argument("--data", type=Path, required=True, help="folder of the benchmark's sites")
    parser.add_argument(
        "--only", action="append", required=True, help="experiment of the run; may be repeated"
    )
    parser.add_argument("--stream", default="folder", help="stream of the rows (default folder)")
    chosen = parser.parse_args()
    images = from_records(chosen.records, chosen.only, chosen.stream).images.filter(pl.col("batch") == 4)
    tops = ceilings(chosen.data.name)
    means = held_out_means(images, chosen.data).with_columns(ceiling=pl.col("target").replace_strict(tops))
    print("| row | transfers | held-out images of a target | gain | gap | share |\n|---|---|---|---|---|---|")
    for row in ROWS:
        mine = means.filter(pl.col("method") == row)
        gain, gap = (
            mine["difference"].to_numpy().mean(),
            (mine["ceiling"] - mine["baseline"]).to_numpy().mean(),
        )
        count = f"{mine['images'].min():.0f} to {mine['images'].max():.0f}"
        print(f"| {row} | {len(mine)} | {count} | {gain:+.2f} | {gap:.2f} | {100 * gain / gap:.0f} % |")


if __name__ == "__main__":
    main()
