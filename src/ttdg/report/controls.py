"""Each method compared with the baseline and with the best control, on the same images and source models.

Controls are rows of the source network without adaptation: alone, or averaged over views. A method that gains no more
than the best of them gains nothing by adapting.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttdg.bench.run_file import is_baseline, without_settings
from ttdg.evaluation import statistics as st
from ttdg.report.aggregate import TransferDifferences, dice_differences, distinct_values, transfer_differences
from ttdg.report.tables import Cell

if TYPE_CHECKING:
    import polars as pl

GAIN, INTERVAL = "Δ Dice", "95 % interval over transfers and seeds"
OVER_CONTROL, CONTROL_INTERVAL = "Δ to the best control", "its 95 % interval over transfers and seeds"
OVER_IMAGES = "95 % interval over images"
P_TRANSFERS, P_IMAGES = "p, transfers", "p, images"
SIGNIFICANT = 0.05  # a test that cannot give a corrected p of this size is not shown
HARM = ("images harmed, %", "targets worse", "worst target")


@dataclass(frozen=True)
class Gains:
    """Cells of the comparison by method and column; the baseline has none."""

    columns: tuple[str, ...]
    cells: Mapping[str, Mapping[str, Cell]]
    note: str


Differences = Mapping[str, Sequence[TransferDifferences]]  # method → its transfers


def compare_with_controls(
    images: "pl.DataFrame",
    baseline: str,
    controls: Sequence[str],
    harm: float,
    others: Collection[str] = (),
) -> Gains:
    """Return the gain of every method with its intervals, tests and harm.

    A transfer with a single image leaves no interval over images, because one image says nothing about the next.
    The best control is the one with the largest gain over the baseline; its columns exist only if it is not the
    baseline itself. A row is compared with the control of its own source model, at the transfers and seeds of its gain;
    where that control lacks one of them, the cells are empty. A column of corrected p-values exists only if a
    significant one can be reached and one is below 1.

    Args:
        images: Dice per image of the scorings of one group.
        baseline: Label of the baseline's row.
        controls: Labels of the controls.
        harm: Loss in points of Dice that counts as harm.
        others: Labels of the rows whose source model is not that of the baseline. They are compared with the baseline,
            which the note says, and not with a control.
    """
    found = _differences(images, baseline)
    methods = [method for method in found if not is_baseline(method, baseline)]
    best = best_control(found, [name for name in controls if name not in others], baseline)
    over_control = _differences(images, best, same_model=True) if best != baseline else {}
    over_control = {
        name: parts for name, parts in over_control.items() if _extent(parts) == _extent(found[name])
    }
    cells = {method: _gain(found[method], harm) for method in methods}
    for method in methods:
        if not is_baseline(method, best) and method not in others and method in over_control:
            cells[method] |= _mean_cells(over_control[method], OVER_CONTROL, CONTROL_INTERVAL)
        elif over_control:
            cells[method] |= {OVER_CONTROL: Cell(""), CONTROL_INTERVAL: Cell("")}
    tests = {
        P_TRANSFERS: st.holm([st.sign_flip_test(_means(found[method])) for method in methods]),
        P_IMAGES: st.holm(
            [st.wilcoxon(np.concatenate([*_image_values(found[method]).values()])) for method in methods]
        ),
    }
    transfers = max((len(found[method]) for method in methods), default=0)
    reachable = {P_TRANSFERS: len(methods) * 2 / 2**transfers, P_IMAGES: 0.0}  # the smallest corrected p
    shown = {
        name: p
        for name, p in tests.items()
        if reachable[name] <= SIGNIFICANT and any(round(value, 3) < 1 for value in p)
    }
    for name, p in shown.items():
        for method, value in zip(methods, p, strict=True):
            cells[method] |= {name: p_value_cell(value)}
    compared = (OVER_CONTROL, CONTROL_INTERVAL) if over_control else ()
    columns = (GAIN, INTERVAL, *compared, OVER_IMAGES, *shown, *HARM)
    few = f"no test over transfers: with {transfers}, no p below {SIGNIFICANT:g} remains after Holm's correction"
    return Gains(
        columns,
        cells,
        _note(
            baseline,
            best,
            tests,
            shown,
            {P_TRANSFERS: few} if reachable[P_TRANSFERS] > SIGNIFICANT else {},
            [method for method in methods if method in others],
        ),
    )


def best_control(found: Differences, controls: Sequence[str], baseline: str) -> str:
    """Return the control with the largest mean gain over the baseline, or the baseline if none gains.

    Controls that differ in the settings of a grid only are one: each has its own source model. Controls that lack
    transfers or seeds which another has are passed over, because their gain is that at other places.
    """
    kinds: dict[str, list[float]] = {}
    others = [name for name in controls if name in found and not is_baseline(name, baseline)]
    most = max((len(_extent(found[name])) for name in others), default=0)
    for name in others:
        if len(_extent(found[name])) == most:
            kinds.setdefault(without_settings(name), []).append(float(_means(found[name]).mean()))
    means = {baseline: 0.0} | {kind: sum(gains) / len(gains) for kind, gains in kinds.items()}
    return max(means, key=lambda name: means[name])


def _extent(transfers: Sequence[TransferDifferences]) -> list[tuple[str, int]]:
    """Return the transfers and the numbers of their seeds."""
    return [(transfer.name, seed) for transfer in transfers for seed in range(len(transfer.seed_means))]


def _differences(
    images: "pl.DataFrame", other: str, same_model: bool = False
) -> dict[str, list[TransferDifferences]]:
    paired = dice_differences(images, other, same_model=same_model)
    differences = {name: transfer_differences(paired, name) for name in distinct_values(images, "method")}
    return {name: transfers for name, transfers in differences.items() if transfers}


def _means(transfers: Sequence[TransferDifferences]) -> st.Values:
    """The gain at each transfer: the mean over seeds, as in the tables of scores, and images of each seed."""
    return np.array([transfer.seed_means.mean() for transfer in transfers])


def _image_values(transfers: Sequence[TransferDifferences]) -> dict[str, st.Values]:
    """Return one value per image for each target: the mean over the transfers to it.

    Transfers from several source sites to one target answer the same images, which are no further patients.
    """
    values: dict[str, dict[tuple[str, str], list[float]]] = {}
    for transfer in transfers:
        of_target = values.setdefault(transfer.target, {})
        for case, value in zip(transfer.cases, transfer.differences.tolist(), strict=True):
            of_target.setdefault(case, []).append(value)
    return {target: np.array([*map(np.mean, found.values())]) for target, found in values.items()}


def _mean_cells(transfers: Sequence[TransferDifferences], name: str, interval: str) -> dict[str, Cell]:
    mean = float(_means(transfers).mean())
    ends = st.bootstrap_transfers_and_seeds([transfer.seed_means for transfer in transfers])
    return {name: Cell(f"{mean:+.2f}", mean), interval: interval_cell(*ends)}


def _gain(transfers: Sequence[TransferDifferences], lost: float) -> dict[str, Cell]:
    means, arrays = _means(transfers), [*_image_values(transfers).values()]
    within = (
        st.bootstrap(arrays, resample_groups=False) if min(map(len, arrays)) > 1 else (math.nan, math.nan)
    )
    harmed = 100 * st.harm(np.concatenate([transfer.by_seed for transfer in transfers]), lost)
    worst, worse = int(means.argmin()), int((means < 0).sum())
    harm = (
        number_cell(harmed, 1),
        Cell(f"{worse} of {len(means)}", worse / len(means)),
        Cell(f"{transfers[worst].name} {means[worst]:+.1f}", float(means[worst])),
    )
    return {
        **_mean_cells(transfers, GAIN, INTERVAL),
        OVER_IMAGES: interval_cell(*within),
        **dict(zip(HARM, harm, strict=True)),
    }


def _note(
    baseline: str,
    best: str,
    tests: Mapping[str, Sequence[float]],
    shown: Mapping[str, object],
    omitted: Mapping[str, str],
    others: Sequence[str],
) -> str:
    """What the columns mean; `omitted` says why a test is not shown, `others` are rows with another source model."""
    words = [f"against {baseline}"]
    if others:
        words.append(
            f"these rows have another source model, and their Δ includes the difference of the models: "
            f"{', '.join(others)}"
        )
    if best != baseline:
        words.append(f"the best control is {best}")
    words.append(
        "the interval over transfers and seeds resamples transfers, and seeds within each; that over images resamples "
        "the images of each target, averaged over seeds and the transfers to it"
    )
    kinds = {
        P_TRANSFERS: "sign flips of transfers",
        P_IMAGES: "signed ranks of images, averaged over seeds and transfers",
    }
    for name, kind in kinds.items():
        if name in shown:
            words.append(f"{name}: {kind}, Holm-corrected over the methods")
        elif name in omitted:
            words.append(omitted[name])
        elif tests[name]:
            none = f"none of {len(tests[name])} methods differs (every p is 1.000)"
            words.append(f"by {kind}, Holm-corrected, {none}")
    return "; ".join(words)


def number_cell(value: float, digits: int) -> Cell:
    """Format a number; NaN becomes a dash."""
    return Cell("–") if math.isnan(value) else Cell(f"{value:.{digits}f}", value)


def p_value_cell(p: float) -> Cell:
    """Format a p value with three digits."""
    return Cell("< 0.001", p) if p < 0.001 else number_cell(p, 3)


def interval_cell(low: float, high: float) -> Cell:
    """Format a confidence interval; NaN becomes a dash."""
    return Cell("–") if math.isnan(low) else Cell(f"[{low:+.2f}, {high:+.2f}]", low)
