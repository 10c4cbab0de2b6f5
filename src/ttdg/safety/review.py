"""The order in which a person should look at answers, and how many failures that order finds early."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

FAILURE = 0.6  # Dice below which an answer is a failure
COVERED = 1.2816  # standard deviations in half of an 80 % interval
SHARES = (0.1, 0.2)  # of the order, for which the failures found are counted


def failure_probability(expected: float, half_width: float) -> float:
    """Return the probability that the Dice is below `FAILURE`, for a normal error with this 80 % interval."""
    deviation = max(half_width, 1e-3) / COVERED
    return 0.5 * (1 + math.erf((FAILURE - expected) / (deviation * math.sqrt(2))))


def review_priority(
    expected: float | None, low: float | None, high: float | None, confidence: float, unusual: bool
) -> float:
    """Return the priority of an answer in [0, 1]: the probability of a failure.

    Without an expected Dice it is the mean doubt per pixel. An unusual image comes first.
    """
    if unusual:
        return 1.0
    if expected is None or low is None or high is None:
        return min(1.0, max(0.0, 1.0 - confidence))
    return failure_probability(expected, (high - low) / 2)


def review_order(priorities: Mapping[str, float]) -> dict[str, int]:
    """Return the place of each file in the order of review, from 1; files of equal priority keep their order."""
    ranked = sorted(priorities, key=lambda file: -priorities[file])
    return {file: place for place, file in enumerate(ranked, 1)}


def failures_found(
    dice: Float[np.ndarray, " n"],
    doubt: Float[np.ndarray, " n"],
    failure: float = FAILURE,
    shares: Sequence[float] = SHARES,
) -> dict[float, float]:
    """Return the share of the failures among the first images in the order of `doubt`, largest first.

    Images of equal doubt count with their mean. A random order finds as large a share as it looks at.

    Args:
        dice: True Dice of each image, in [0, 1].
        doubt: What the order is made from, such as the probability of a failure or the entropy.
        failure: Dice below which an image is a failure.
        shares: Shares of the images that are looked at.

    Returns:
        Share looked at → share of the failures found; NaN if there is no failure.
    """
    failed = (np.asarray(dice) < failure).astype(float)
    levels, index = np.unique(-np.asarray(doubt, float), return_inverse=True)
    means = np.bincount(index, failed, len(levels)) / np.bincount(index, minlength=len(levels))
    ordered = means[np.sort(index)]
    total = failed.sum()
    cumulative = np.concatenate([[0.0], np.cumsum(ordered)])
    places = np.arange(len(ordered) + 1)
    return {
        share: float(np.interp(share * len(ordered), places, cumulative) / total) if total else math.nan
        for share in shares
    }
