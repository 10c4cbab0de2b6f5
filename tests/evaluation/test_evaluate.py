import math
from dataclasses import replace

import pytest
import torch

from ttdg.data import find_sites, load_benchmark
from ttdg.errors import UserError
from ttdg.evaluation.evaluate import Setting, evaluate
from ttdg.evaluation.site import benchmark_for_model, device_batches, evaluate_site
from ttdg.types import Batch


class Oracle:
    """Answers with given label maps, and remembers what it was asked and when it was reset."""

    def __init__(self, answers):
        self.answers, self.seen, self.resets = answers, [], 0
        self.network = torch.nn.Identity()

    def __call__(self, images):
        self.seen.append(images)
        labels = self.answers[len(self.seen) - 1]
        return 20.0 * torch.nn.functional.one_hot(labels, 2).movedim(-1, 1).float()

    def reset(self):
        self.resets += 1


def a_batch(cases="ab"):
    masks = torch.zeros(len(cases), 16, 16, dtype=torch.long)
    masks[:, 4:10, 4:10] = 1
    return Batch(torch.randn(len(cases), 3, 16, 16), masks, tuple(cases))


REGIONS = {"disc": (1,)}
ONLINE = Setting("east", "source", "online", 2)


def test_a_perfect_answer_scores_one_and_a_missed_structure_zero():
    batch = a_batch()
    answer = batch.masks.clone()
    answer[1] = 0
    records = evaluate(Oracle([answer]), [batch], REGIONS, ONLINE, surfaces=True)
    found, missed = records.rows
    assert found.dice == 1
    assert found.hd95 == 0
    assert missed.dice == 0
    assert missed.hd95 == pytest.approx(math.hypot(16, 16), rel=0.1)


def test_online_resets_once_and_episodic_before_every_batch():
    batches = [a_batch("ab"), a_batch("cd"), a_batch("e")]
    answers = [batch.masks for batch in batches]
    online, episodic = Oracle(answers), Oracle(answers)
    evaluate(online, batches, REGIONS, ONLINE)
    records = evaluate(episodic, batches, REGIONS, replace(ONLINE, stream="episodic"))
    assert online.resets == 1
    assert episodic.resets == 4
    assert [row.case for row in records.rows] == list("abcde")


def test_poisoned_labels_change_scores_but_not_what_the_adapter_sees():
    batch = a_batch()
    poisoned = replace(batch, masks=1 - batch.masks)
    clean, other = Oracle([batch.masks]), Oracle([batch.masks])
    right = evaluate(clean, [batch], REGIONS, ONLINE)
    wrong = evaluate(other, [poisoned], REGIONS, ONLINE)
    assert torch.equal(clean.seen[0], other.seen[0])
    assert right.mean("dice") == 1
    assert wrong.mean("dice") == 0


def test_a_site_is_scored_image_by_image_in_the_order_asked_for(discs, disc_model):
    site, benchmark = find_sites(discs)["west"], load_benchmark(None, discs)
    setting = Setting("west", "norm", "online", 4)
    plain = evaluate_site(disc_model, site, benchmark, setting)
    shuffled = evaluate_site(disc_model, site, benchmark, setting, shuffle=3)
    assert plain.values("case") == [case.name for case in site.cases]
    assert shuffled.values("case") != plain.values("case")
    assert sorted(shuffled.values("case")) == plain.values("case")
    held_out = evaluate_site(disc_model, site, benchmark, setting, held_out=True)
    assert 0 < len(held_out.rows) < len(plain.rows)


def test_a_site_without_masks_cannot_be_scored(discs, disc_model):
    site = find_sites(discs)["west"]
    bare = replace(site, cases=tuple(replace(case, mask=None) for case in site.cases))
    with pytest.raises(UserError, match="has images without masks"):
        evaluate_site(disc_model, bare, load_benchmark(None, discs), ONLINE)


def test_the_data_keep_their_encoding_and_take_the_models_size(discs, disc_model):
    other = replace(load_benchmark(None, discs), size=64, normalisation="imagenet")
    assert benchmark_for_model(disc_model.card, other).size == 32
    assert benchmark_for_model(disc_model.card, other).normalisation == "minmax"
    with pytest.raises(UserError, match="the model knows the labels background, disc"):
        benchmark_for_model(disc_model.card, load_benchmark("fundus"))


def test_progress_counts_images(discs, disc_model):
    counts = []
    cases = find_sites(discs)["west"].cases
    list(device_batches(torch.device("cpu"), cases, disc_model.card.benchmark, 4, progress=counts.append))
    assert counts == [4, 8, 10]
