import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ttdg.adaptation import METHODS, adapt
from ttdg.bench.execute import score_job
from ttdg.bench.jobs import Scoring
from ttdg.data import find_sites, load_benchmark, load_sources
from ttdg.errors import UserError
from ttdg.evaluation.evaluate import evaluate
from ttdg.evaluation.scoring import measure_all, measure_dice, score_streams
from ttdg.evaluation.site import Setting, benchmark_for_model, device_batches, evaluate_site
from ttdg.evaluation.streams import TargetStream
from ttdg.evaluation.tuning import Search, hospital_stream, run_trial
from ttdg.types import Batch


class Oracle:
    """Answers with given label maps, and remembers its inputs and resets."""

    def __init__(self, answers):
        self.answers, self.seen, self.resets = answers, [], 0
        self.network = torch.nn.Conv2d(1, 1, 1)

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


def scored(adapter, batches, stream="online", surfaces=False):
    """metric → values in the order of the images."""
    images = [("east", case) for batch in batches for case in batch.cases]
    target = TargetStream("east", images, lambda: batches)
    rows, _ = score_streams(adapter, [target], stream, REGIONS, measure=measure_all(surfaces))
    found = {}
    for _, _, case, _, metric, value in rows:
        found.setdefault(metric, []).append((case, value))
    return found


def values(rows, *metrics):
    return [row for row in rows if row[4] in metrics]


def test_a_perfect_answer_scores_one_and_a_missed_structure_zero():
    batch = a_batch()
    answer = batch.masks.clone()
    answer[1] = 0
    found = scored(Oracle([answer]), [batch], surfaces=True)
    assert found["dice"] == [("a", 1), ("b", 0)]
    assert found["hd95"][0][1] == 0
    assert found["hd95"][1][1] == pytest.approx(math.hypot(16, 16), rel=0.1)


def test_online_resets_once_and_episodic_before_every_batch():
    batches = [a_batch("ab"), a_batch("cd"), a_batch("e")]
    answers = [batch.masks for batch in batches]
    online, episodic = Oracle(answers), Oracle(answers)
    scored(online, batches)
    found = scored(episodic, batches, "episodic")
    assert online.resets == 1
    assert episodic.resets == 3
    assert [case for case, _ in found["dice"]] == list("abcde")


def test_poisoned_labels_change_scores_but_not_the_input_of_the_adapter():
    batch = a_batch()
    poisoned = replace(batch, masks=1 - batch.masks)
    clean, other = Oracle([batch.masks]), Oracle([batch.masks])
    right, wrong = scored(clean, [batch]), scored(other, [poisoned])
    assert torch.equal(clean.seen[0], other.seen[0])
    assert right["dice"] == [("a", 1), ("b", 1)]
    assert wrong["dice"] == [("a", 0), ("b", 0)]


def test_the_maximum_is_taken_of_the_mean_curve_and_not_the_mean_of_the_maxima():
    def measure(logits, labels, regions):
        curve = torch.zeros(2, 1, 256)
        curve[0, 0, 10], curve[1, 0, 200] = 1, 1
        return {"dice": torch.ones(2, 1), "curve": curve}

    batch = a_batch()
    target = TargetStream("east", [("east", "a"), ("east", "b")], lambda: [batch])
    rows, _ = score_streams(Oracle([batch.masks]), [target], "online", REGIONS, measure=measure)
    assert values(rows, "alignment_max") == [("east", "", "", "disc", "alignment_max", 0.5)]


def test_curves_are_summed_in_float64():
    batch = a_batch()
    thirds = torch.full((2, 1, 256), 1 / 3)
    target = TargetStream("east", [("east", "a"), ("east", "b")], lambda: [batch])
    rows, _ = score_streams(
        Oracle([batch.masks]), [target], "online", REGIONS, measure=lambda *_: {"curve": thirds}
    )
    assert values(rows, "alignment_max")[0][5] == float(thirds[0, 0, 0])


def test_a_site_is_scored_image_by_image_in_the_order_asked_for(discs, disc_model):
    site, benchmark = find_sites(discs)["west"], load_benchmark(None, discs)
    setting = Setting("west", "norm", "online", 4, seed=3)

    def cases(**more):
        rows = evaluate_site(disc_model, site, benchmark, setting, **more).rows
        return [row[2] for row in rows if row[4] == "dice"]

    plain, shuffled = cases(), cases(shuffle=True)
    assert plain == [case.name for case in site.cases]
    assert shuffled != plain
    assert sorted(shuffled) == plain
    assert 0 < len(cases(held_out=True)) < len(plain)


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


@pytest.mark.parametrize("method", ["source", "norm", "tent"])
def test_bench_and_evaluate_give_the_same_numbers_to_the_last_digit(finished, discs, method):
    """One model and one site through both commands: every row but the seconds is equal."""
    from ttdg.bench.folder import RunFolder
    from ttdg.checkpoints import load

    folder, run = finished
    job = next(job for job in run.jobs.values() if isinstance(job, Scoring) and job.method == "norm")
    job = replace(job, method=method, options={}, defaults={}, instances=False, shuffle=True)
    benched = score_job(job, RunFolder(folder, discs, folder / "models"))[1]
    (target,) = job.targets
    evaluated = evaluate_site(
        load(folder / "models" / job.training), find_sites(discs)[target.name], load_benchmark(None, discs),
        Setting(target.name, method, "online", job.batch, job.seed), shuffle=True, surfaces=job.surfaces,
    ).rows  # fmt: skip
    assert [row for row in benched if row[4] != "seconds"] == [
        row for row in evaluated if row[4] != "seconds"
    ]


def test_tuning_scores_as_an_evaluation_of_the_same_hospitals_does(discs, disc_model):
    held_out = list(load_sources(find_sites(discs), load_benchmark(None, discs)).held_out.values())
    search, benchmark = Search(hospitals=2, images=4, batch=2), disc_model.card.benchmark
    targets = [hospital_stream(n, held_out, benchmark, search, torch.device("cpu")) for n in range(2)]
    adapter = adapt(disc_model, "tent", lr=1e-2)
    whole = evaluate(
        adapter, targets, "online", 2, benchmark.regions, memory=METHODS["tent"].memory, measure=measure_all()
    )
    dice = [value for *_, metric, value in whole.rows if metric == "dice"]
    assert run_trial(disc_model, "tent", {"lr": 1e-2}, held_out, search).dice == sum(dice) / len(dice)


def test_dice_alone_is_the_dice_of_the_whole_measure():
    logits, labels = torch.randn(5, 2, 16, 16), torch.randint(0, 2, (5, 16, 16))
    alone, whole = measure_dice(logits, labels, REGIONS), measure_all()(logits, labels, REGIONS)
    assert torch.equal(alone["dice"], whole["dice"])


def test_metadata_count_images_batches_and_passes(discs, disc_model):
    result = evaluate_site(
        disc_model,
        find_sites(discs)["west"],
        load_benchmark(None, discs),
        replace(ONLINE, site="west", batch=4),
    )
    assert (result.about["images"], result.about["batches"], result.about["forwards"]) == (10, 3, 3)
    assert result.about["method"] == "source"
    assert result.about["dice"]["west"] == pytest.approx(np.mean([r[5] for r in values(result.rows, "dice")]))
