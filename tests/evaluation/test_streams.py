import itertools
from dataclasses import replace

import pytest
import torch

from ttdg.adaptation import Assessment, adapt
from ttdg.bench.protocols import STREAMS
from ttdg.evaluation import streams
from ttdg.evaluation.scoring import measure_all, score_streams
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


def a_target(name, count):
    masks = torch.zeros(1, 4, 4, dtype=torch.long)
    images = [(name, f"{name}{i}") for i in range(count)]
    return TargetStream(
        name, images, lambda: (Batch(torch.zeros(1, 3, 4, 4), masks, (f"{name}{i}",)) for i in range(count))
    )


def states(stream, memory=True):
    """What the adapter had seen when it answered each batch of two targets of three."""
    return [
        int(a.logits.max())
        for _, a in answers(Counter(), [a_target("a", 3), a_target("b", 3)], stream, memory)
    ]


def test_each_stream_forgets_when_it_says_it_does():
    assert states("episodic") == [1, 1, 1, 1, 1, 1]
    assert states("online") == [1, 2, 3, 1, 2, 3]
    assert states("continual") == [1, 2, 3, 4, 5, 6]
    assert states("offline") == [3, 3, 3, 3, 3, 3]


def test_a_method_without_memory_answers_two_passes_as_it_answers_one():
    assert states("offline", memory=False) == states("online")


class Learning(Counter):
    """Learns a site by counting its images, and answers with that number."""

    def learn(self, site, progress):
        self.seen = 100 + sum(len(images) for images in site)

    def predict_frozen(self, images):
        return self._logits(images)


def test_a_folder_is_learned_whole_and_then_answered_by_the_frozen_state():
    adapter = Learning()
    adapter.network = torch.nn.Conv2d(1, 1, 1)
    targets = [a_target("a", 3), a_target("b", 2)]
    states_of_answers = [int(a.logits.max()) for _, a in answers(adapter, targets, "folder")]
    assert states_of_answers == [103, 103, 103, 102, 102]


def test_a_folder_may_be_learned_from_chosen_images_and_is_answered_whole():
    adapter = Learning()
    adapter.network = torch.nn.Conv2d(1, 1, 1)
    target = replace(a_target("a", 5), learning=a_target("a", 2).batches)
    found = [(a.cases[0], int(a.logits.max())) for _, a in answers(adapter, [target], "folder")]
    assert found == [(f"a{i}", 102) for i in range(5)]
    in_two_passes = [int(a.logits.max()) for _, a in answers(Counter(), [target], "folder")]
    assert in_two_passes == [2] * 5
    assert [int(a.logits.max()) for _, a in answers(Counter(), [target], "offline")] == [5] * 5


def test_the_time_of_learning_is_shared_by_all_images_that_are_answered(monkeypatch):
    """A clock that advances by one second at each look: learning one batch takes three looks, of which one reads."""
    clock = itertools.count()
    monkeypatch.setattr(streams.time, "perf_counter", lambda: float(next(clock)))
    target = replace(a_target("a", 4), learning=a_target("a", 1).batches)
    adapter = Learning()
    adapter.network = torch.nn.Conv2d(1, 1, 1)
    whole = sum(a.seconds for _, a in answers(adapter, [target], "folder"))
    without = sum(a.seconds for _, a in answers(adapter, [target], "folder", memory=False))
    assert whole - without == 3


def test_a_folder_is_offline_for_methods_that_do_not_learn_a_site():
    assert states("folder") == states("offline")


def test_offline_says_so_wherever_it_is_named():
    assert "two passes" in STREAMS["offline"]


def test_offline_tent_is_the_network_after_one_pass(disc_model):
    torch.manual_seed(0)
    batches = [
        Batch(torch.randn(2, 3, 32, 32), torch.zeros(2, 32, 32, dtype=torch.long), ("a", "b"))
        for _ in range(3)
    ]
    adapter = adapt(disc_model, "tent", lr=1e-2)
    given = [a.logits for _, a in answers(adapter, [TargetStream("x", [], lambda: batches)], "offline")]
    by_hand = adapt(disc_model, "tent", lr=1e-2)
    for batch in batches:
        by_hand(batch.images)
    with torch.no_grad():
        expected = [by_hand.network(batch.images) for batch in batches]
    assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))


@pytest.mark.parametrize("stream", sorted(STREAMS))
def test_every_image_is_answered_once_in_order(stream):
    names = [a.cases[0] for _, a in answers(Counter(), [a_target("a", 3), a_target("b", 2)], stream)]
    assert names == ["a0", "a1", "a2", "b0", "b1"]


class Assessing(Counter):
    """Expects a Dice of 0.25 of the first image of a batch and 0.75 of every other."""

    def assessment(self):
        return Assessment(("a", "b"), torch.tensor([0.25, 0.75]), torch.tensor([0.05, 0.15]))


def test_the_dice_that_a_method_expects_is_kept_beside_the_scores():
    masks = torch.zeros(2, 8, 8, dtype=torch.long)
    images = [("site", "p"), ("site", "q")]
    target = TargetStream("x", images, lambda: [Batch(torch.zeros(2, 3, 8, 8), masks, ("p", "q"))])
    rows, _ = score_streams(Assessing(), [target], "online", {"r": (1,)}, measure=measure_all())
    expected = {(case, metric): value for _, _, case, region, metric, value in rows if region == ""}
    assert expected["p", "expected"] == 0.25
    assert expected["q", "expected"] == 0.75
    assert expected["q", "half_width"] == pytest.approx(0.15)
    assert {metric for _, metric in expected} == {"seconds", "expected", "half_width"}


def test_a_method_that_expects_nothing_leaves_no_such_rows():
    assert [a.expected for _, a in answers(Counter(), [a_target("a", 1)], "online")] == [{}]
