import pytest
import torch

from ttdg.adaptation import adapt
from ttdg.adaptation.judge.method import Verdict
from ttdg.adaptation.judge.regressor import Prediction
from ttdg.evaluation.protocols import STREAMS
from ttdg.evaluation.scoring import Scorer
from ttdg.evaluation.streams import TargetStream, answers
from ttdg.types import Batch


class Counter:
    """Answers with the number of batches it has seen since its last reset."""

    def __init__(self):
        self.seen, self.network = 0, lambda images: self._logits(images)

    def _logits(self, images):
        return torch.full((len(images), 2, *images.shape[2:]), float(self.seen))

    def __call__(self, images):
        self.seen += 1
        return self._logits(images)

    def reset(self):
        self.seen = 0


def a_leg(name, count):
    masks = torch.zeros(1, 4, 4, dtype=torch.long)
    return TargetStream(
        name, lambda: (Batch(torch.zeros(1, 3, 4, 4), masks, (f"{name}{i}",)) for i in range(count))
    )


def states(stream, memory=True):
    """What the adapter had seen when it answered each batch of two targets of three."""
    return [
        int(a.logits.max()) for _, a in answers(Counter(), [a_leg("a", 3), a_leg("b", 3)], stream, memory)
    ]


def test_each_stream_forgets_when_it_says_it_does():
    assert states("episodic") == [1, 1, 1, 1, 1, 1]
    assert states("online") == [1, 2, 3, 1, 2, 3]
    assert states("continual") == [1, 2, 3, 4, 5, 6]
    assert states("offline") == [3, 3, 3, 3, 3, 3]


def test_a_method_without_memory_answers_two_passes_as_it_answers_one():
    assert states("offline", memory=False) == states("online")


def test_offline_says_so_wherever_it_is_named():
    assert "two passes" in STREAMS["offline"]


def test_offline_tent_is_the_network_after_one_pass(disc_model):
    torch.manual_seed(0)
    batches = [
        Batch(torch.randn(2, 3, 32, 32), torch.zeros(2, 32, 32, dtype=torch.long), ("a", "b"))
        for _ in range(3)
    ]
    adapter = adapt(disc_model, "tent", lr=1e-2)
    given = [a.logits for _, a in answers(adapter, [TargetStream("x", lambda: batches)], "offline")]
    by_hand = adapt(disc_model, "tent", lr=1e-2)
    for batch in batches:
        by_hand(batch.images)
    with torch.no_grad():
        expected = [by_hand.network(batch.images) for batch in batches]
    assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))


@pytest.mark.parametrize("stream", sorted(STREAMS))
def test_every_image_is_answered_once_in_order(stream):
    names = [a.cases[0] for _, a in answers(Counter(), [a_leg("a", 3), a_leg("b", 2)], stream)]
    assert names == ["a0", "a1", "a2", "b0", "b1"]


class Judging(Counter):
    """Believes its first candidate of the first image of a batch, its second of every other."""

    def __call__(self, images):
        chosen = torch.ones(len(images), dtype=torch.long)
        chosen[0] = 0
        dice = torch.tensor([[0.25, 0.75]]).expand(len(images), 2)
        self.verdict = Verdict(chosen, Prediction(dice, dice / 5, dice[None]), ("a", "b"))
        return super().__call__(images)


def test_what_a_method_expects_of_its_own_answers_is_kept_beside_their_scores():
    masks = torch.zeros(2, 8, 8, dtype=torch.long)
    leg = TargetStream("x", lambda: [Batch(torch.zeros(2, 3, 8, 8), masks, ("p", "q"))])
    scorer = Scorer("x", [("site", "p"), ("site", "q")], {"r": (1,)})
    rows = [row for _, answer in answers(Judging(), [leg], "online") for row in scorer.add(answer)]
    rows += scorer.finish()
    said = {(case, metric): value for _, _, case, region, metric, value in rows if region == ""}
    assert said["p", "expected"] == 0.25
    assert said["q", "expected"] == 0.75
    assert said["q", "half_width"] == pytest.approx(0.15)
    assert {metric for _, metric in said} == {"seconds", "expected", "half_width"}


def test_a_method_that_expects_nothing_leaves_no_such_rows():
    assert [a.said for _, a in answers(Counter(), [a_leg("a", 1)], "online")] == [{}]
