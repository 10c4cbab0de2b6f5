"""Answers of methods at a labelled site, and images that show them side by side."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import UInt8

from ttdg.checkpoints import Model
from ttdg.data import Benchmark, Site, load_arrays
from ttdg.evaluation.evaluate import Evaluation
from ttdg.evaluation.site import Setting, benchmark_for_model, evaluate_site
from ttdg.report.figures.panels import Panel

FOLDER = ("universe", "self-training")  # methods that learn the whole site before they answer
Labels = Mapping[str, UInt8[np.ndarray, "h w"]]  # case → label indices


def evaluate_with_answers(
    model: Model, site: Site, benchmark: Benchmark, method: str, batch: int
) -> tuple[Evaluation, Labels]:
    """Score a method at a site; return also the most probable labels of each case.

    Dice is that of regions whose probability is above one half. For an unsure network, the most probable labels can
    therefore cover more than what is scored.
    """
    setting = Setting(site.name, method, "folder" if method in FOLDER else "online", batch)
    maps: list[np.ndarray] = []
    evaluation = evaluate_site(model, site, benchmark, setting, answered=partial(_keep_labels, maps))
    return evaluation, dict(zip((case.name for case in site.cases), maps, strict=True))


def comparison_panels(
    model: Model,
    site: Site,
    benchmark: Benchmark,
    evaluated: Mapping[str, tuple[Evaluation, Labels]],
    rows: int = 5,
) -> list[Panel]:
    """Return images evenly spaced from the worst to the best of the first column, with the answers of every column."""
    dice = {name: _dice_by_case(evaluation) for name, (evaluation, _) in evaluated.items()}
    first = dice[next(iter(evaluated))]
    ranked = sorted(first, key=first.__getitem__)
    chosen = [ranked[i] for i in np.linspace(0, len(ranked) - 1, rows).round().astype(int)]
    cases = [case for case in site.cases if case.name in chosen]
    arrays = load_arrays(cases, benchmark_for_model(model.card, benchmark))
    assert arrays.masks is not None
    row = {name: number for number, name in enumerate(arrays.cases)}
    return [
        Panel(
            case,
            arrays.images[row[case]].movedim(0, -1).numpy(),
            arrays.masks[row[case]].numpy(),
            {name: (labels[case], dice[name][case]) for name, (_, labels) in evaluated.items()},
        )
        for case in chosen
    ]


def _dice_by_case(evaluation: Evaluation) -> dict[str, float]:
    """Mean Dice of each image over its regions."""
    values: dict[str, list[float]] = {}
    for _, _, case, _, metric, value in evaluation.rows:
        if metric == "dice":
            values.setdefault(case, []).append(value)
    return {case: float(np.mean(dice)) for case, dice in values.items()}


def _keep_labels(maps: list[np.ndarray], logits: torch.Tensor) -> None:
    maps.extend(logits.argmax(1).to(torch.uint8).cpu().numpy())
