import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ttdg.evaluation.statistics import bootstrap, harm, holm, mean_and_spread, sign_flip_test, wilcoxon

PS = st.lists(st.floats(0, 1), min_size=1, max_size=8)


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
