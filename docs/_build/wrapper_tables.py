"""Tables of methods without and with what can be put around any of them: the gate, and flips."""

from collections.abc import Sequence

from methods_page import table
from record_tables import AGAINST, HARMED, gain, named, value, views


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
    """Gain of every method in each experiment, without flips and with them, and its harm without; or empty cells."""
    found = {experiment: views(run, experiment)[AGAINST] for experiment in experiments}
    lines = []
    for label in (label for label in found[experiments[0]] if not label.endswith("+ flips")):
        cells = []
        for rows in found.values():
            pair = (rows.get(label), rows.get(f"{label} + flips"))
            cells += [gain(row, "Dice") if row else "" for row in pair]
            cells.append(pair[0][HARMED].text if pair[0] else "")
        lines.append((named(label), *cells))
    heads = (f"{name}, {what}" for name in experiments for what in ("Δ Dice", "with flips", HARMED))
    return table(("method", *heads), lines)
