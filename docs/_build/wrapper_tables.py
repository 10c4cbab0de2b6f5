"""Tables of methods with several settings: what can be put around any of them (gate, flips), and their own options."""

from collections.abc import Mapping, Sequence

from methods_page import table
from packed import run_table
from record_tables import AGAINST, BASELINE, HARMED, Row, gain, named, value, views
from ttdg.adaptation import METHODS
from ttdg.bench.results import select_experiments
from ttdg.report.aggregate import image_dice
from ttdg.report.controls import INTERVAL, compare_with_controls

FLIPPED = " + flips"  # end of the label of a row whose answers are averaged over flips


def with_and_without_gate(run: str, experiment: str) -> str:
    """Gain, harm and time of every method, without the gate and with it."""
    rows = views(run, experiment)[AGAINST]
    lines = []
    for label, row in rows.items():
        if (gated := rows.get(f"{label} + gate")) is not None:
            lines.append((named(label), *(gain(r, "Dice") for r in (row, gated)),
                          *(f"{value(r[HARMED]):.1f}" for r in (row, gated)),
                          *(r["ms/image"].text for r in (row, gated))))  # fmt: skip
    heads = (
        f"{what}{how}" for what in ("Δ Dice", HARMED, "ms/image") for how in (", without", ", with the gate")
    )
    return table(("method", *heads), lines)


def with_and_without_flips(run: str, experiments: Sequence[str]) -> str:
    """Gain of every method in each experiment and its harm, and its gain with flips over the source with flips.

    Both gains compare a row with its own control, on the same models and images. A method that mirrors images itself
    has one row, which is compared with both. Cells of rows that were not run, or share one transfer with their control,
    are empty.
    """
    found = {experiment: views(run, experiment)[AGAINST] for experiment in experiments}
    over_flips = {experiment: _gains_over_flips(run, experiment) for experiment in experiments}
    lines = []
    for label, facts in found[experiments[0]].items():
        control = label == f"{BASELINE}{FLIPPED}"
        if label == BASELINE or (label.endswith(FLIPPED) and not control):
            continue
        cells = []
        for experiment, rows in found.items():
            mirrors = label in METHODS and METHODS[label].flips
            plain = rows.get(label)
            flipped = over_flips[experiment].get(label if mirrors else f"{label}{FLIPPED}")
            cells += [_gain(plain), _gain(flipped), plain[HARMED].text if plain else ""]
        lines.append((f"`{BASELINE}` with flips" if control else named(label), facts["access"].text, *cells))
    columns = ("Δ Dice", "with flips, Δ to the source with flips", HARMED)
    heads = (f"{name}, {what}" for name in experiments for what in columns)
    return table(("method", "access", *heads), lines)


def side_by_side(run: str, columns: Sequence[tuple[str, str, str]]) -> str:
    """Gain of methods in several experiments or settings; the methods are those of the last column.

    Args:
        run: A folder of `docs/records`.
        columns: Heading, experiment, and what the row's label has behind the name of the method.
    """
    found = [(views(run, experiment)[AGAINST], end) for _, experiment, end in columns]
    last, end = found[-1]
    methods = [name for label in last if (name := label.removesuffix(end)) in METHODS and label == name + end]
    cells = ([_gain(rows.get(name + ending)) for rows, ending in found] for name in methods)
    lines = [(named(name), *row) for name, row in zip(methods, cells, strict=True) if any(row)]
    return table(("method", *(heading for heading, *_ in columns)), lines)


def _gain(row: Row | None) -> str:
    """The gain of a row that has an interval; one transfer gives none."""
    return gain(row, "Dice") if row and row[INTERVAL].text.startswith("[") else ""


def _gains_over_flips(run: str, experiment: str) -> Mapping[str, Row]:
    """Gain of every row over the source with flips."""
    images = image_dice(select_experiments(run_table(run), [experiment]))
    return compare_with_controls(images, f"{BASELINE}{FLIPPED}", [], 5.0).cells
