"""Which candidate answers an image of a learned site."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ttdg.adaptation.universe.answer_rule import AGREEING, agreeing, choose_candidates
from ttdg.adaptation.universe.site_judge import ADAPTED, CANDIDATES, MEAN, UNADAPTED, stack_candidates
from ttdg.errors import UserError
from ttdg.metrics import dice

SIZE = 16
REGIONS = {"object": (1,)}


def square(left: int, width: int = 8) -> torch.Tensor:
    """Probabilities of two labels; the object is a square of the given width from column `left` on."""
    inside = torch.zeros(SIZE, SIZE)
    inside[:width, left : left + width] = 0.9
    return torch.stack([1 - inside, inside])[None]


def predictions(same: list[bool]) -> torch.Tensor:
    """Candidates of images in which the unadapted and the adapted prediction agree, or do not."""
    adapted = torch.cat([square(0 if each else 8) for each in same])
    return stack_candidates(square(0).expand(len(same), -1, -1, -1), adapted)


def expected(images: int) -> torch.Tensor:
    """Dice that four members expect, at random."""
    return torch.rand(4, images, len(CANDIDATES))


@given(st.integers(0, 8))
def test_predictions_agree_if_their_dice_is_above_the_limit(shift):
    one, other = square(0), square(shift)
    same = dice(one[:, 1:], other[:, 1:] > 0.5).item() > AGREEING
    assert agreeing(stack_candidates(one, other), REGIONS).tolist() == [same]
    assert same is (2 * (8 - shift) / 16 > AGREEING)


def test_two_empty_predictions_agree_and_an_empty_one_agrees_with_no_other():
    empty, full = square(0, 0), square(0)
    assert agreeing(stack_candidates(empty, empty), REGIONS).tolist() == [True]
    assert agreeing(stack_candidates(empty, full), REGIONS).tolist() == [False]
    assert agreeing(stack_candidates(full, empty), REGIONS).tolist() == [False]


def test_the_mean_of_two_objects_at_different_places_shows_neither():
    """The reason for the rule."""
    P = stack_candidates(square(0), square(8))
    assert not (P[MEAN][:, 1] > 0.5).any()
    assert not agreeing(P, REGIONS).item()


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.booleans())
def test_the_rule_agreement_averages_where_both_agree_unless_the_site_is_expected_to_lose(same, gaining):
    chosen = choose_candidates("agreement", gaining, predictions(same), expected(len(same)), REGIONS).tolist()
    assert chosen == [(MEAN if each else ADAPTED) if gaining else UNADAPTED for each in same]


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.booleans())
def test_the_rule_adapted_never_averages(same, gaining):
    chosen = choose_candidates("adapted", gaining, predictions(same), expected(len(same)), REGIONS).tolist()
    assert chosen == [ADAPTED if gaining else UNADAPTED] * len(same)


@pytest.mark.parametrize("best", range(3))
def test_the_rule_judge_takes_the_candidate_that_all_members_expect_to_be_best(best):
    members = torch.full((4, 2, 3), 0.5)
    members[..., best] = 0.7
    for same in (True, False):
        assert (
            choose_candidates("judge", True, predictions([same] * 2), members, REGIONS).tolist() == [best] * 2
        )


def test_the_rule_judge_keeps_the_fallback_where_nothing_is_expected():
    members, P = torch.full((4, 1, 3), 0.5), predictions([True])
    assert choose_candidates("judge", True, P, members, REGIONS).tolist() == [ADAPTED]
    assert choose_candidates("judge", False, P, members, REGIONS).tolist() == [UNADAPTED]


# --- in the learner


@pytest.mark.parametrize(("anatomy", "averaged"), [("varied", True), ("steady", False)])
def test_structures_of_varied_size_are_answered_by_the_mean_where_both_agree(
    source, anatomy, averaged, away, quick, expecting, both_ways, judged, monkeypatch
):
    adapter = source.adapt("universe", anatomy=anatomy, **quick)
    adapter.site_judge.regressor = expecting(0.5, 0.6, 0.7)
    adapter.learn([away(0)])
    same = torch.tensor([True, False])
    monkeypatch.setattr("ttdg.adaptation.universe.answer_rule.agreeing", lambda P, regions: same)
    answer = adapter.predict_frozen(away(9))
    one, two = judged(source, away(9)), both_ways(adapter.teacher, away(9))
    mean = ((one.exp() + two.exp()) / 2).log()
    expected = torch.stack([(mean if averaged else two)[0], two[1]])
    torch.testing.assert_close(answer, expected, atol=1e-4, rtol=1e-4)
    names = tuple(CANDIDATES[i] for i in (MEAN if averaged else ADAPTED, ADAPTED))
    assert adapter.assessment().choices == names
    other = source.adapt("judge")
    other(away(9))
    readings = other.assessment().dice.float()
    site = torch.tensor([0.7 if averaged else 0.6, 0.6])
    torch.testing.assert_close(adapter.assessment().dice, (site + readings) / 2)
    torch.testing.assert_close(adapter.assessment().unadapted, (0.5 + readings) / 2)


def test_a_choice_that_does_not_exist_is_refused(source, quick):
    with pytest.raises(UserError, match="agreement"):
        source.adapt("universe", choice="banana", **quick)
