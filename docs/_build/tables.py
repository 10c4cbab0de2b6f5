"""The full tables, generated from `docs/records` with the report code of the package."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import studies
from datasets import datasets_table
from gains import SHORT, STRONG, gains_figure, gains_table
from measured import MEASURED
from packed import RECORDS, run_reports, run_table
from ttdg.bench.verification.outcome import verification_state
from ttdg.report.formats import to_markdown
from ttdg.report.leaderboard import build_leaderboards
from ttdg.report.tables import ReportTable

__all__ = ["TABLES", "figures", "pages", "started"]
ROOT = Path(__file__).parents[2]
RUNS = {
    "polyp": "Polyp: `judge`, `universe-choice`, controls and ablations",
    "fundus": "Fundus: `judge`, `universe-choice`, controls and ablations",
    "polyp-methods": "Polyp: every method, tuned",
    "fundus-methods": "Fundus: every method, tuned",
    "strong-polyp": "Polyp: every method over the strong source",
    "strong-fundus": "Fundus: every method over the strong source",
    "learn-polyp": "Polyp: learning a site",
    "learn-fundus": "Fundus: learning a site",
    "longer-polyp": "Polyp: over a source of 4,800 steps",
    "longer-fundus": "Fundus: over a source of 4,800 steps",
    "learn-polyp-eight": "Polyp: learning a site, judges of eight readings",
    "learn-fundus-eight": "Fundus: learning a site, judges of eight readings",
    "methods-cpu": "Fundus: every method, flips, batch sizes, statistics and options, small network",
    "rivals-cpu": "Fundus: published methods that learn a site, small network",
    "gate-cpu": "Polyp: the gate around every method, small network",
    "prostate": "Prostate: four centres",
    "vessels": "Retinal vessels",
    "pacs": "PACS: classification",
    "literal": "The paper to the letter, drawn hospitals",
    "literal-cpu": "The paper to the letter, fundus sites, small network",
    "shapes": "Classification of drawn shapes",
}
OURS = ("docs/records/polyp", "docs/records/fundus")
TUNED = ("docs/records/polyp-methods", "docs/records/fundus-methods")
SETTINGS = ("multi-source", "single source", "one image at a time", "single source, one image at a time")
STEPS = ("steps on the universe and their ablations", "a memory of graphs")
COMMANDS: Mapping[str, tuple[str, ...]] = {  # table → script of the repository that prints it
    "transfers": (
        "experiments/transfers.py",
        *OURS,
        *(word for name in SETTINGS for word in ("--only", name)),
    ),
    "steps": ("experiments/transfers.py", *OURS, *(word for name in STEPS for word in ("--only", name))),
    "methods": ("experiments/methods.py", *TUNED, "--costs", "docs/results/adapt-h200-methods.json"),
}
FILTER = '<div class="table-filter" markdown="0"></div>'  # docs/_assets/tables.js puts two text fields here


@cache
def started() -> dict[str, subprocess.Popen[str]]:
    """The scripts as processes, which run while the pages are generated."""
    pipe = subprocess.PIPE
    return {
        name: subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        for name, words in COMMANDS.items()
    }


@cache
def printed(name: str) -> str:
    """What the script of a table prints."""
    text, errors = started()[name].communicate()
    if started()[name].returncode:
        raise RuntimeError(f"python {' '.join(COMMANDS[name])} failed:\n{errors}")
    return text.strip()


TABLES: Mapping[str, Callable[[], str]] = {  # name in `<!-- table: NAME -->` → Markdown
    "gains": lambda: gains_table(SHORT),
    "strong-gains": lambda: gains_table(STRONG),
    "transfers": lambda: printed("transfers"),
    "steps": lambda: printed("steps"),
    "methods": lambda: printed("methods"),
    "first-study": studies.first_study,
    "recipe-pilot": studies.recipe_pilot,
    "source-recipes": studies.source_recipes,
    "drawn-hospitals": studies.drawn_hospitals,
    "speed": studies.speed,
    "verified": lambda: verified_table(),
    "data-sets": datasets_table,
    **MEASURED,
}


def figures() -> dict[str, bytes]:
    """Path in the site → SVG."""
    return {"figures/gains.svg": gains_figure(SHORT), "figures/strong-gains.svg": gains_figure(STRONG)}


def pages() -> dict[str, str]:
    """Path in the site → Markdown."""
    found = {f"tables/{run}.md": run_page(run, title) for run, title in RUNS.items()}
    return {**found, "leaderboard.md": leaderboard_page()}


def run_page(run: str, title: str) -> str:
    """Every table of one run."""
    head = f"# {title}\n\nThe records are in `docs/records/{run}`. `ttdg report docs/records/{run}` makes these tables."
    head += f" The records are {verification_state(RECORDS / run, run_table(run))}."
    return "\n\n".join([head, FILTER, *map(view_text, run_reports(run))]) + "\n"


def verified_table() -> str:
    """Whether the records of each run were run again."""
    lines = ["| run | `ttdg verify` |", "|---|---|"]
    for run, title in RUNS.items():
        lines.append(f"| [{title}](tables/{run}.md) | {verification_state(RECORDS / run, run_table(run))} |")
    return "\n".join(lines)


def leaderboard_page() -> str:
    """Every method of every run by benchmark, access and stream, best mean Dice first."""
    parts = ["# Leaderboard", "The command is `ttdg leaderboard docs/records`.", FILTER]
    for board in build_leaderboards([RECORDS / run for run in RUNS]):
        parts += [f"## {board.title}", *map(view_text, board.views)]
    return "\n\n".join(parts) + "\n"


def view_text(view: ReportTable) -> str:
    """One table below a heading, so that the table of contents lists it."""
    table = to_markdown([view]).splitlines()[2:]  # without the title in bold
    return "\n".join([f"### {view.title}", "", *table]).strip()
