"""Markdown tables from the csv files of `leave_one_out.py`: mean ± standard deviation over seeds.

python experiments/summarise.py docs/results/leave-one-out.csv
"""

import argparse
import csv
import statistics
from pathlib import Path


def cell(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {spread:.1f}"


def per_seed(rows: list[dict], score: str) -> list[float]:
    """One number a seed: the mean over regions (and over sites, where several are given)."""
    seeds = sorted({row["seed"] for row in rows})
    return [statistics.mean(float(row[score]) for row in rows if row["seed"] == seed) for seed in seeds]


def table(rows: list[dict], score: str) -> str:
    """Methods by sites; the last column is the mean over sites, each counting alike."""
    sites, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("target", "method"))
    lines = ["| method | " + " | ".join(sites) + " | mean |", "|---|" + "---|" * (len(sites) + 1)]
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        cells = [cell(per_seed([row for row in mine if row["target"] == site], score)) for site in sites]
        lines.append(f"| {method} | " + " | ".join([*cells, cell(per_seed(mine, score))]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    rows = list(csv.DictReader(parser.parse_args().file.open()))
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        mine = [row for row in rows if row["benchmark"] == benchmark]
        regions = list(dict.fromkeys(row["region"] for row in mine))
        for score, name in (("dice", "Dice"), ("alignment", "E"), ("structure", "S")):
            print(f"\n**{benchmark}, {name}**\n\n{table(mine, score)}")
        for region in regions if len(regions) > 1 else ():
            part = [row for row in mine if row["region"] == region]
            print(f"\n**{benchmark}, Dice of {region}**\n\n{table(part, 'dice')}")


if __name__ == "__main__":
    main()
