"""What may be concluded: confidence intervals, paired tests, harm. Pure functions of arrays.

A transfer (one source model meeting one target) is the unit that generalises to a new hospital, an image the one that
generalises to a new patient there. Intervals and tests are therefore given for both; the one over transfers is the
honest answer to "will it help at the next hospital?".
"""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, "_n"]  # of any length: groups differ
EXACT = 12  # transfers up to which all sign flips are tried


def bootstrap(
    groups: Sequence[Values],
    *,
    resample_groups: bool = True,
    resample_images: bool = True,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """An interval for the mean over groups of the groups' means, each group (a transfer) counting alike.

    Transfers are drawn with replacement and, within each, images; either can be held fixed.
    """
    rng = np.random.default_rng(seed)
    kept = [group for group in groups if len(group)]
    if not kept:
        return float("nan"), float("nan")
    n = len(kept)
    picked = rng.integers(0, n, (draws, n)) if resample_groups else np.tile(np.arange(n), (draws, 1))
    if resample_images:
        drawn = np.stack([_image_means(group, draws, rng) for group in kept])  # (groups, draws)
    else:
        drawn = np.repeat([[group.mean()] for group in kept], draws, axis=1)
    means = drawn[picked, np.arange(draws)[:, None]].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _image_means(group: Values, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "d"]:
    """Means of resamples. Large groups in slices, so that the draws never take more than some megabytes."""
    n, step = len(group), max(1, 2_000_000 // len(group))
    parts = [
        group[rng.integers(0, n, (min(step, draws - start), n))].mean(1) for start in range(0, draws, step)
    ]
    return np.concatenate(parts)


def sign_flip_test(differences: Values, draws: int = 20_000, seed: int = 0) -> float:
    """Two-sided p of "the mean is 0" when each difference might as well have the other sign.

    Exact up to 12 differences. With n of them p cannot be below 2/2ⁿ: three transfers can prove nothing.
    """
    n = len(differences)
    if n == 0:
        return float("nan")
    observed = abs(differences.mean())
    if n <= EXACT:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
    else:
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), (draws, n))
        signs[0] = 1  # the observation is one of the possibilities
    means = np.abs((signs * differences).mean(1))
    return float((means >= observed - 1e-12).mean())


def wilcoxon(differences: Values) -> float:
    """Two-sided p of the signed-rank test; 1 where nothing differs."""
    from scipy import stats

    if len(differences) == 0 or not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences, zero_method="zsplit").pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p-values in the order given; NaN stays and is not counted."""
    values = np.asarray(p, float)
    order = [i for i in np.argsort(values, kind="stable") if not np.isnan(values[i])]
    adjusted, worst = values.copy(), 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * values[index]))
        adjusted[index] = worst
    return adjusted.tolist()


def harm(differences: Values, lost: float) -> float:
    """The share of images that lost more than `lost`; both in the same unit."""
    return float((differences < -lost).mean()) if len(differences) else float("nan")


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds; NaN for the spread of one."""
    array = np.asarray(values, float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")
