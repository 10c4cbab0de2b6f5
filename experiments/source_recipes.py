"""Compare recipes of the source model by nested leave-one-site-out, as Markdown.

    python experiments/source_recipes.py runs/source-polyp runs/source-fundus

Every score is the mean Dice of a model at a source site that was left out of its training. A nested score of an outer
target averages over the left-out sites; the recipe for that target is the one with the highest nested score. The table
shows the mean over outer targets and each recipe's difference to `strong`.
"""

import argparse
from pathlib import Path

from ttdg.bench.jobs import Scoring
from ttdg.bench.results import read_table


def nested_scores(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return outer target → recipe → left-out site → mean Dice in percent."""
    table = read_table(folder)
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for entry in table.run.entries:
        job, about = table.run.jobs[entry.job], table.about.get(entry.job)
        if not isinstance(job, Scoring) or about is None:
            continue
        outer = "without " + entry.experiment.rpartition("without ")[2]
        ((site, dice),) = about["dice"].items()
        scores.setdefault(outer, {}).setdefault(entry.label, {})[site] = 100 * dice
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    for folder in parser.parse_args().runs:
        scores = nested_scores(folder)
        recipes = list(dict.fromkeys(recipe for by_recipe in scores.values() for recipe in by_recipe))
        print(f"\n**{folder.name}**, mean Dice at left-out source sites\n")
        print(f"| recipe | {' | '.join(scores)} | mean |\n|---|{'---|' * (len(scores) + 1)}")
        for recipe in recipes:
            means = [sum(d.values()) / len(d) for d in (by.get(recipe, {}) for by in scores.values()) if d]
            cells = " | ".join(f"{value:.1f}" for value in means)
            print(f"| {recipe} | {cells} | {sum(means) / len(means):.2f} |")


if __name__ == "__main__":
    main()
