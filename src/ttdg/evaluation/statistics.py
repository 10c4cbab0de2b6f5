"""Confidence intervals, paired tests, the share of a gap closed and of images harmed. Pure functions of arrays.

Intervals over transfers (a set of source sites and a target) and seeds (one source model each) generalise to a new
hospital and a newly trained model. Intervals over images generalise to new patients of the same hospitals. Tables give
both; the interval over transfers and seeds answers the question "will the method help at the next hospital?".
"""

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Int

Values = Float[np.ndarray, "_n"]  # groups may differ in length
EXACT = 12  # up to this many transfers all sign flips are enumerated
SMALLEST_GAP = 1.0  # in points of Dice: a share of a smaller gap is not reported


def bootstrap(
    groups: Sequence[Values],
    *,
    resample_groups: bool = True,
    resample_images: bool = True,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over groups of the group means; every group has the same weight.

    A group holds the values of one transfer. Transfers are drawn with replacement, and images within each transfer;
    either level can be held fixed.
    """
    rng = np.random.default_rng(seed)
    kept = [group for group in groups if len(group)]
    if not kept:
        return float("nan"), float("nan")
    n = len(kept)
    picked = _pick_groups(n, draws, rng) if resample_groups else np.tile(np.arange(n), (draws, 1))
    if resample_images:
        drawn = np.stack([_image_means(group, draws, rng) for group in kept])  # (groups, draws)
    else:
        drawn = np.repeat([[group.mean()] for group in kept], draws, axis=1)
    means = drawn[picked, np.arange(draws)[:, None]].mean(1)
    return _central(means, level)


def wilson(successes: float | int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a share, such as an accuracy; NaN without images."""
    if not count:
        return float("nan"), float("nan")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, scale = successes / count, 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_transfers_and_seeds(
    by_seed: Sequence[Values], *, draws: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over transfers of the means over seeds.

    Each resample draws transfers with replacement, and for each drawn transfer its seeds with replacement. With one
    seed it is the interval over transfers. The interval is NaN if fewer than two transfers have values: one transfer
    says nothing about the next.

    Args:
        by_seed: For each transfer, one value per seed, such as the mean difference over its images.
        draws: Number of resamples.
        level: Coverage of the interval.
        seed: Seed of the resamples.
    """
    kept = [values for values in by_seed if len(values)]
    if len(kept) < 2:
        return math.nan, math.nan
    rng, sizes = np.random.default_rng(seed), np.array([len(values) for values in kept])
    table = np.stack([np.pad(values, (0, sizes.max() - len(values))) for values in kept])
    picked = _pick_groups(len(kept), draws, rng)
    counts = sizes[picked][..., None]  # seeds of every drawn transfer
    drawn = (rng.random((*picked.shape, sizes.max())) * counts).astype(int)
    values = np.where(np.arange(sizes.max()) < counts, table[picked[..., None], drawn], 0.0)
    return _central((values.sum(2) / counts[..., 0]).mean(1), level)


def gap_closed(
    gains: Sequence[Values],
    gaps: Sequence[Values],
    *,
    smallest: float = SMALLEST_GAP,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return the share of the gap that is closed, in percent, and its bootstrap interval over transfers.

    The share is the ratio of two sums over transfers: the mean gains, and the mean gaps. Every transfer has the same
    weight. A transfer without images, or with a mean gap below `smallest`, does not enter the sums. The interval draws
    the same transfers as `bootstrap`. The share is NaN if no transfer is left, the interval if only one is left.

    Args:
        gains: Score of the method minus that of the baseline, per image; one array for each transfer.
        gaps: Score of the ceiling minus that of the baseline, for the same images.
        smallest: Smallest mean gap of a transfer that counts, in the unit of the scores.
        draws: Number of resamples.
        level: Coverage of the interval.
        seed: Seed of the resamples.
    """
    pairs = [(gain.mean(), gap.mean()) for gain, gap in zip(gains, gaps, strict=True) if len(gap)]
    kept = np.array([pair for pair in pairs if pair[1] >= smallest]).reshape(-1, 2)
    if not len(kept):
        return math.nan, math.nan, math.nan
    share = float(100 * kept[:, 0].sum() / kept[:, 1].sum())
    if len(kept) == 1:
        return share, math.nan, math.nan
    sums = kept[_pick_groups(len(kept), draws, np.random.default_rng(seed))].sum(1)
    return share, *_central(100 * sums[:, 0] / sums[:, 1], level)


def _pick_groups(n: int, draws: int, rng: np.random.Generator) -> Int[np.ndarray, "d n"]:
    """Return the numbers of the groups in each resample, drawn with replacement."""
    return rng.integers(0, n, (draws, n))


def _central(values: Values, level: float) -> tuple[float, float]:
    """Return the ends of the interval that holds the central share `level` of the values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _image_means(group: Values, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "d"]:
    """Return the means of resamples, computed in slices that bound memory to a few megabytes."""
    n, step = len(group), max(1, 2_000_000 // len(group))
    parts = [
        group[rng.integers(0, n, (min(step, draws - start), n))].mean(1) for start in range(0, draws, step)
    ]
    return np.concatenate(parts)


def sign_flip_test(differences: Values, draws: int = 20_000, seed: int = 0) -> float:
    """Return the two-sided p-value of a sign-flip test that the mean is 0.

    The test is exact up to 12 differences. With n differences p is at least 2/2ⁿ, so three transfers are never
    significant.
    """
    n = len(differences)
    if n == 0:
        return float("nan")
    observed = abs(differences.mean())
    if n <= EXACT:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
    else:
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), (draws, n))
        signs[0] = 1  # include the observed signs
    means = np.abs((signs * differences).mean(1))
    return float((means >= observed - 1e-12).mean())


def wilcoxon(differences: Values) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test; 1 if all differences are 0."""
    from scipy import stats

    if len(differences) == 0 or not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences, zero_method="zsplit").pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down method, in the given order; NaN is kept and not counted."""
    values = np.asarray(p, float)
    order = [i for i in np.argsort(values, kind="stable") if not np.isnan(values[i])]
    adjusted, worst = values.copy(), 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * values[index]))
        adjusted[index] = worst
    return adjusted.tolist()


def harm(differences: Values, lost: float) -> float:
    """Return the share of images that lost more than `lost`, in the unit of the differences."""
    return float((differences < -lost).mean()) if len(differences) else float("nan")


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation over seeds; the deviation of one seed is NaN."""
    array = np.asarray(values, float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")
