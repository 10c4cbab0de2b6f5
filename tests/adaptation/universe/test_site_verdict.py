"""Whether a site is like home, and whether learning it is expected to gain."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation import Remarking
from ttdg.adaptation.universe.site_verdict import SiteVerdict
from ttdg.types import Part

CPU = torch.device("cpu")
FEATURES = 9  # of a description


def a_verdict(members: int = 8, error: float = 0.0) -> SiteVerdict:
    """Its home is a site of descriptions with mean 0 and deviation 1."""
    tensors = {"home.mean": torch.zeros(1, FEATURES), "home.deviation": torch.ones(1, FEATURES)}
    return SiteVerdict(Part(tensors, {}), members, CPU, error=error)


@given(
    gains=st.lists(st.floats(-0.2, 0.2), min_size=8, max_size=8),
    images=st.integers(1, 50),
    error=st.floats(0, 0.1),
)
@settings(max_examples=40, deadline=None)
def test_the_source_is_kept_only_if_a_loss_is_beyond_the_doubt_of_the_members_and_of_a_new_site(
    gains, images, error
):
    verdict = a_verdict(error=error)
    verdict.gains.copy_(torch.tensor([images * gain for gain in gains] + [images]))
    bound = np.mean(gains) + 2 * np.sqrt(np.var(gains, ddof=1) + error**2)
    if abs(bound) > 1e-5:
        assert verdict.gaining is bool(bound > 0)


@given(batches=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_gain_of_a_site_is_the_mean_over_its_images(batches, seed):
    verdict = a_verdict(3)
    dice = torch.rand(3, sum(batches), 3, generator=torch.Generator().manual_seed(seed))
    for part in dice.split(batches, 1):
        verdict.add_gains(part)
    expected = (dice[..., 1] - dice[..., 0]).mean(1)
    assert torch.allclose(verdict.gains[:-1] / verdict.gains[-1], expected, atol=1e-5)


def test_a_verdict_forgets_its_images():
    verdict = a_verdict()
    verdict.add_images(torch.rand(2, 3, 8, 8))
    verdict.add_gains(torch.rand(8, 2, 3))
    assert all(value.any() for value in verdict.tensors().values())
    verdict.reset()
    assert not any(value.any() for value in verdict.tensors().values())


def test_nothing_is_said_of_a_site_without_images():
    assert a_verdict().remarks(learned=False) == ()


def test_a_site_like_home_is_named_unless_it_was_learned():
    verdict = a_verdict()
    verdict.described[-1] = 16  # images, each with the description of home
    assert verdict.like_home
    (remark,) = verdict.remarks(learned=False)
    assert "not learned" in remark
    assert verdict.remarks(learned=True) == ()


@pytest.mark.parametrize("gain", [-0.031, 0.031])
def test_a_site_that_is_expected_to_lose_is_named_with_the_loss(gain):
    verdict = a_verdict(error=0.01)
    verdict.described.copy_(torch.tensor([160.0] * FEATURES + [16]))  # far from home
    verdict.gains.copy_(torch.tensor([16 * gain] * 8 + [16]))
    remarks = verdict.remarks(learned=True)
    assert len(remarks) == (gain < 0)
    assert all("lose 3.1 ± 2.0 Dice" in remark for remark in remarks)


def test_the_learner_says_why_a_site_was_not_learned_or_not_used(source, at_home, away, quick, expecting):
    adapter = source.adapt("universe", **quick)
    assert isinstance(adapter, Remarking)
    assert adapter.remarks() == ()
    adapter.learn([at_home(0, 8), at_home(1, 8)])
    assert "not learned" in adapter.remarks()[0]
    adapter.reset()
    adapter.site_judge.regressor = expecting(0.5, 0.4, 0.5)
    adapter.learn([away(0), away(1)])
    assert "lose 10.0 ± " in adapter.remarks()[0]
    adapter.reset()
    adapter.site_judge.regressor = expecting(0.5, 0.6, 0.5)
    adapter.learn([away(0), away(1)])
    assert adapter.remarks() == ()
