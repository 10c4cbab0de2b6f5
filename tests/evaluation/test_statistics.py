import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from ttdg.evaluation.statistics import (
    bootstrap,
    bootstrap_transfers_and_seeds,
    gap_closed,
    harm,
    holm,
    mean_and_spread,
    sign_flip_test,
    wilcoxon,
)

PS = st.lists(st.floats(0, 1), min_size=1, max_size=8)
POINTS = st.floats(-100, 100)
PAIRS = st.lists(st.tuples(POINTS, POINTS), min_size=1, max_size=5).map(np.array)  # (gain, gap) per image
TRANSFERS = st.lists(PAIRS, min_size=1, max_size=6)


def share(transfers):
    return gap_closed([pairs[:, 0] for pairs in transfers], [pairs[:, 1] for pairs in transfers])


def defined(transfers):
    """The transfers whose mean gap is at least a point, and not so close to it that rounding decides."""
    assume(all(abs(pairs[:, 1].mean() - 1) > 1e-6 for pairs in transfers))
    return [pairs for pairs in transfers if pairs[:, 1].mean() >= 1]


@given(PS)
def test_holm_never_lowers_a_p_and_keeps_their_order(p):
    adjusted = holm(p)
    assert all(a >= b for a, b in zip(adjusted, p, strict=True))
    assert all(a <= 1 for a in adjusted)
    assert [adjusted[i] for i in np.argsort(p, kind="stable")] == sorted(adjusted)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5]) == [0.5]
    assert np.isnan(holm([float("nan"), 0.2])[0])
    assert holm([float("nan"), 0.2])[1] == 0.2


def test_the_interval_over_images_of_one_group_is_that_of_scipy():
    values = np.random.default_rng(0).normal(1, 2, 200)
    low, high = bootstrap([values], resample_groups=False, draws=4000)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    )
    assert low == pytest.approx(expected.confidence_interval.low, abs=0.05)
    assert high == pytest.approx(expected.confidence_interval.high, abs=0.05)


def test_many_images_do_not_narrow_the_interval_over_transfers():
    rng = np.random.default_rng(0)
    transfers = [rng.normal(mean, 1, 500) for mean in (-3, 0, 3, 6)]
    images = bootstrap(transfers, resample_groups=False)
    over = bootstrap(transfers, resample_images=False)
    assert images[1] - images[0] < 0.3
    assert over[1] - over[0] > 3
    both = bootstrap(transfers)
    assert both[1] - both[0] >= 0.95 * (over[1] - over[0])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(150):
        groups = [rng.normal(m, 1, 30) for m in rng.normal(2, 1, 20)]
        low, high = bootstrap(groups, draws=400, seed=seed)
        hits += low <= 2 <= high
    assert hits / 150 > 0.85


BY_SEED = st.lists(st.lists(POINTS, min_size=1, max_size=4).map(np.array), min_size=2, max_size=6)


@given(BY_SEED)
def test_the_interval_over_transfers_and_seeds_lies_within_the_values_and_ignores_their_order(by_seed):
    low, high = bootstrap_transfers_and_seeds(by_seed, draws=200)
    assert min(values.min() for values in by_seed) - 1e-9 <= low <= high
    assert high <= max(values.max() for values in by_seed) + 1e-9
    moved = bootstrap_transfers_and_seeds([values + 7.0 for values in by_seed], draws=200)
    assert np.allclose(moved, (low + 7, high + 7), atol=1e-6)


def test_with_one_seed_it_is_the_interval_over_transfers():
    means = np.array([-3.0, 0.0, 3.0, 6.0])
    over = bootstrap([means[[i]] for i in range(4)], resample_images=False, draws=20_000)
    assert bootstrap_transfers_and_seeds([means[[i]] for i in range(4)], draws=20_000) == pytest.approx(
        over, abs=0.3
    )


def test_its_variance_is_that_of_transfers_and_of_seeds_together():
    """By hand: n transfers, s seeds; the variance of a resampled mean is (between + within / s) / n."""
    rng = np.random.default_rng(0)
    centres, spread = rng.normal(0, 2, 40), rng.normal(0, 3, (40, 3))
    groups = list(centres[:, None] + spread)
    low, high = bootstrap_transfers_and_seeds(groups, draws=20_000)
    means, within = np.mean(groups, 1), np.var(groups, 1).mean()
    expected = 2 * 1.96 * np.sqrt((means.var() + within / 3) / 40)
    assert high - low == pytest.approx(expected, rel=0.03)
    over = bootstrap([means[[i]] for i in range(40)], resample_images=False)
    assert high - low > over[1] - over[0]


def test_it_covers_the_truth_about_as_often_as_it_says_and_the_interval_of_pooled_seeds_does_not():
    rng, hits, pooled_hits = np.random.default_rng(1), 0, 0
    for seed in range(150):
        groups = list(rng.normal(2, 2, (20, 1)) + rng.normal(0, 0.5, (20, 3)))
        low, high = bootstrap_transfers_and_seeds(groups, draws=300, seed=seed)
        hits += low <= 2 <= high
        pooled = bootstrap([np.concatenate(groups)], draws=300, resample_groups=False, seed=seed)
        pooled_hits += pooled[0] <= 2 <= pooled[1]
    assert hits / 150 > 0.88
    assert pooled_hits < hits


@pytest.mark.parametrize("by_seed", [[], [np.array([1.0, 2.0])], [np.array([1.0, 2.0]), np.array([])]])
def test_one_transfer_has_no_interval_over_transfers(by_seed):
    assert np.isnan(bootstrap_transfers_and_seeds(by_seed)).all()


def test_seeds_that_differ_in_number_weigh_their_transfers_alike():
    groups = [np.zeros(1), np.full(5, 2.0)]
    low, high = bootstrap_transfers_and_seeds(groups, draws=4000)
    assert (low, high) == (0.0, 2.0)


def test_each_transfer_counts_alike_however_many_images_it_has():
    low, high = bootstrap([np.zeros(1000), np.full(10, 2.0)], resample_groups=False)
    assert low == high == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_sign_flips_agree_with_scipys_exact_permutation_test(seed):
    x = np.random.default_rng(seed).normal(0.5, 1, 3 + seed)
    expected = stats.permutation_test((x,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    assert sign_flip_test(x) == pytest.approx(expected)


def test_three_transfers_can_prove_nothing():
    assert sign_flip_test(np.array([9.0, 9.1, 9.2])) == 0.25


def test_many_differences_are_sampled_and_agree_with_the_t_test():
    x = np.random.default_rng(3).normal(0.4, 1, 40)
    assert sign_flip_test(x) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.02)


def test_nothing_changed_is_no_evidence():
    assert wilcoxon(np.zeros(5)) == 1
    assert sign_flip_test(np.zeros(4)) == 1
    assert harm(np.zeros(5), 5.0) == 0


def test_harm_is_the_share_that_loses_more_than_allowed():
    assert harm(np.array([-6.0, -5.0, 0.0, 4.0]), 5.0) == 0.25
    assert mean_and_spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


@given(TRANSFERS)
def test_the_ceiling_closes_the_whole_gap_and_the_source_none_of_it(transfers):
    if not defined(transfers):
        assert np.isnan(share(transfers)).all()
        return
    assert share([pairs[:, [1, 1]] for pairs in transfers])[0] == pytest.approx(100)
    assert share([pairs * [0, 1] for pairs in transfers])[0] == 0


@given(TRANSFERS, POINTS, POINTS)
def test_the_share_is_linear_in_the_gains(transfers, factor, points):
    kept = defined(transfers)
    assume(kept)
    value = share(transfers)[0]
    assert share([pairs * [factor, 1] for pairs in transfers])[0] == pytest.approx(factor * value, abs=1e-6)
    more = 100 * points * len(kept) / sum(pairs[:, 1].mean() for pairs in kept)
    assert share([pairs + np.array([points, 0]) for pairs in transfers])[0] == pytest.approx(
        value + more, abs=1e-6
    )


@given(TRANSFERS, st.randoms(use_true_random=False))
def test_the_share_does_not_depend_on_the_order_of_images_or_transfers(transfers, random):
    defined(transfers)
    mixed = [pairs[random.sample(range(len(pairs)), len(pairs))] for pairs in transfers]
    random.shuffle(mixed)
    assert share(mixed)[0] == pytest.approx(share(transfers)[0], abs=1e-6, nan_ok=True)


@given(TRANSFERS)
def test_the_share_lies_between_those_of_its_transfers_and_so_does_its_interval(transfers):
    kept = defined(transfers)
    assume(kept)
    each = [share([pairs])[0] for pairs in kept]
    value, low, high = share(transfers)
    slack = 1e-6 * (1 + max(map(abs, each)))
    assert min(each) - slack <= value <= max(each) + slack
    if len(kept) == 1:
        assert np.isnan([low, high]).all()
    else:
        assert min(each) - slack <= low <= high <= max(each) + slack


def test_the_share_of_several_transfers_is_the_ratio_of_their_sums():
    gains, gaps = [np.array([10.0]), np.array([0.0, 4.0])], [np.array([40.0]), np.array([4.0, 4.0])]
    assert gap_closed(gains, gaps)[0] == pytest.approx(100 * 12 / 44)


def test_a_transfer_without_images_or_with_a_small_gap_is_left_out():
    gains, gaps = [np.array([10.0])], [np.array([40.0])]
    for gain, gap in (([], []), ([5.0], [0.9]), ([5.0], [-30.0])):
        assert gap_closed([*gains, np.array(gain)], [*gaps, np.array(gap)])[0] == 25
    assert np.isnan(gap_closed([np.array([5.0])], [np.array([0.9])])).all()
    assert np.isnan(gap_closed([], [])).all()


def test_with_equal_gaps_the_interval_is_that_of_the_mean_gain():
    gains = [np.random.default_rng(i).normal(i, 1, 20) for i in range(6)]
    _, low, high = gap_closed(gains, [np.full(20, 8.0)] * 6)
    assert (low, high) == pytest.approx([100 * end / 8 for end in bootstrap(gains, resample_images=False)])
