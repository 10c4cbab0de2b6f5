"""How good a judge is: its predictions for simulated hospitals that it was not fitted on."""

import math
from typing import TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.adaptation.judge.method import choose
from ttdg.adaptation.judge.regressor import fit_regressor

FOLDS = 5


class JudgeQuality(TypedDict):
    """Cross-validated quality of the expected Dice of the answers."""

    rank: float | None  # rank correlation with the true Dice; None if it does not exist
    coverage: float  # share of the answers whose true Dice is inside the 80 % interval
    hospitals: int  # simulated hospitals of the cross-validation


def judge_quality(
    x: Float[Tensor, "b k f"],
    dice: Float[Tensor, "b k r"],
    hospital: Int[Tensor, " b"],
    fallback: int,
    *,
    margin: float = 0.05,
    seed: int = 0,
) -> JudgeQuality | None:
    """Fit the regressor without each fifth of the hospitals, and compare its answers there with the truth.

    The held-out images of a site occur in several hospitals, under another shift in each. The quality is therefore that
    for a new shift of known images.

    Args:
        x: Features of every image and candidate.
        dice: The true Dice of every image, candidate and region.
        hospital: Index of the simulated hospital of each image.
        fallback: The candidate that is kept if no other is expected to gain `margin`.
        margin: Smallest expected gain in Dice that is acted on.
        seed: Seed of the regressors.

    Returns:
        The quality, or None if there are fewer than two hospitals.
    """
    ids, hospital = hospital.unique(return_inverse=True)
    folds = min(FOLDS, len(ids))
    if folds < 2:
        return None
    expected, width, truth = list[Tensor](), list[Tensor](), list[Tensor]()
    for fold in range(folds):
        test = hospital % folds == fold
        _, known = hospital[~test].unique(return_inverse=True)
        predicted = fit_regressor(x[~test], dice[~test], known, seed=seed).predict(x[test])
        pick = choose(predicted.members, fallback, margin)[:, None]
        answers = (predicted.dice, predicted.half_width, dice[test].mean(2))
        for kept, values in zip((expected, width, truth), answers, strict=True):
            kept.append(values.gather(1, pick)[:, 0].double().cpu())
    guess, half, true = torch.cat(expected), torch.cat(width), torch.cat(truth)
    rank = _rank_correlation(guess, true)
    inside = ((guess - true).abs() <= half).double().mean()
    return {
        "rank": None if math.isnan(rank) else round(rank, 4),
        "coverage": round(float(inside), 4),
        "hospitals": len(ids),
    }


def _rank_correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    """Spearman's rank correlation; ties share their mean rank, and a constant has none."""
    from scipy.stats import rankdata

    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return math.nan
    ranks = torch.stack([torch.from_numpy(rankdata(values.numpy())) for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])
