from dataclasses import replace

import pytest
import torch

from ttdg.adaptation import METHODS, Resumable, build_adapter
from ttdg.adaptation.gate import GatedAdapter, gate
from ttdg.errors import UserError
from ttdg.newsite import predict
from ttdg.safety.gate import answer_overlap, failed_tests, mean_answer, weight_change
from ttdg.safety.policy import GatePolicy, read_policy

REGIONS = {"disc": (1,)}


def logits_of(mask):
    return torch.stack([-10.0 * (mask * 2 - 1), 10.0 * (mask * 2 - 1)])[None]


def a_disc(radius):
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    return ((y - 16).square() + (x - 16).square() < radius**2).float()


def expected(source, answer):
    return torch.full((2, 1), source), torch.full((2, 1), answer)


@pytest.mark.parametrize(
    ("source", "answer", "reason"),
    [
        (0.9, 0.8, "expected to lose (-10.0 Dice)"),
        (0.8, 0.9, ""),
        (0.4, 0.3, "expected to lose (-10.0 Dice)"),
    ],
)
def test_an_answer_is_rejected_if_it_is_expected_to_lose(source, answer, reason):
    discs = logits_of(a_disc(8)), logits_of(a_disc(7))
    assert failed_tests(*discs, REGIONS, GatePolicy(), expected(source, answer)) == [reason]


def test_the_sources_own_answer_is_accepted_whatever_is_expected():
    disc = logits_of(a_disc(8))
    assert failed_tests(disc, disc, REGIONS, GatePolicy(), expected(0.9, 0.5)) == [""]


def test_an_answer_close_to_the_sources_is_accepted_although_a_loss_is_expected():
    discs = logits_of(a_disc(8)), logits_of(a_disc(7))
    assert failed_tests(*discs, REGIONS, GatePolicy(close=0.8), expected(0.9, 0.5)) == [""]
    assert failed_tests(*discs, REGIONS, GatePolicy(close=0.99), expected(0.9, 0.5)) != [""]


def test_without_a_judge_an_answer_far_from_the_sources_is_rejected():
    source, near, other = (logits_of(a_disc(r)) for r in (10, 9, 3))
    assert failed_tests(source, near, REGIONS, GatePolicy()) == [""]
    assert "disagrees" in failed_tests(source, other, REGIONS, GatePolicy())[0]


def test_an_answer_that_is_not_finite_or_empties_a_structure_is_rejected():
    disc, empty = logits_of(a_disc(10)), logits_of(torch.zeros(32, 32))
    assert "not finite" in failed_tests(disc, disc * torch.nan, REGIONS, GatePolicy())[0]
    assert "area" in failed_tests(disc, empty, REGIONS, GatePolicy(), expected(0.9, 0.95))[0]


def test_the_mean_answer_has_the_mean_of_both_probabilities():
    source, answer = torch.randn(2, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mean = mean_answer(source, answer).softmax(1)
    assert torch.allclose(mean, (source.softmax(1) + answer.softmax(1)) / 2, atol=1e-6)


def test_agreement_is_the_dice_of_both_masks_and_one_if_both_are_empty():
    empty, disc = torch.zeros(32, 32), a_disc(8)
    half = disc * (torch.arange(32) < 16)
    overlap = 2 * half.sum() / (half.sum() + disc.sum())
    answers = [logits_of(mask) for mask in (disc, half, empty, empty)]
    assert answer_overlap(answers[0], answers[1], REGIONS).item() == pytest.approx(overlap.item())
    assert answer_overlap(answers[2], answers[3], REGIONS).item() == 1
    assert answer_overlap(answers[0], answers[2], REGIONS).item() == 0


def test_the_change_of_weights_is_relative_and_infinite_for_nan():
    before = {"w": torch.ones(4), "count": torch.tensor(3)}
    assert weight_change(before, before) == 0
    assert weight_change(before, {"w": torch.ones(4) * 1.5}) == pytest.approx(0.5)
    assert weight_change(before, {"w": torch.full((4,), torch.nan)}) == float("inf")


@pytest.mark.parametrize(
    "text", ["least_gains: 0", "least_gain: 7", "least_gain: many", "- 1", "least_gain: true", ": ["]
)
def test_a_wrong_policy_is_refused_with_a_sentence(tmp_path, text):
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(UserError, match=r"policy|bound"):
        read_policy(tmp_path / "policy.yaml")


def test_a_policy_keeps_the_defaults_that_it_does_not_name(tmp_path):
    (tmp_path / "policy.yaml").write_text("least_gain: -0.1\n")
    assert read_policy(tmp_path / "policy.yaml") == GatePolicy(least_gain=-0.1)


def gated(model, method, policy=None, **options):
    regions = model.card.benchmark.regions
    adapter = build_adapter(model, method, options)
    return gate(adapter, model, regions, policy or GatePolicy(), METHODS[method].memory)


def source_logits(model, images):
    with torch.no_grad():
        return model.network(images)


def test_putting_the_gate_around_a_method_leaves_the_global_random_generator_as_it_is(demo):
    before = torch.get_rng_state()
    gated(demo, "tent")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_gate_that_accepts_nothing_answers_as_the_source_and_undoes_every_update(demo, site_images):
    adapter, images = gated(demo, "tent", GatePolicy(largest_change=0.0), lr=1e-2), site_images["north"][:4]
    for _ in range(2):
        adapter(images)
    source = {n: x for n, x in demo.network.state_dict().items() if x.is_floating_point()}
    now = adapter.network.state_dict()
    assert adapter.counts["undone"] == 2
    assert all(torch.equal(now[name], value) for name, value in source.items())


def test_the_gate_keeps_harmful_answers_of_norm_at_home(demo, site_images):
    images = site_images["north"]
    plain, adapter = build_adapter(demo, "norm", {}), gated(demo, "norm")
    source, answer, kept = source_logits(demo, images), plain(images), adapter(images)
    for row, reason in enumerate(adapter.decision.reasons):
        assert torch.equal(kept[row], source[row] if reason else answer[row])
    assert adapter.counts["rejected"] > 0
    assert len(adapter.assessment().dice) == len(images)


def with_a_judge_of_the_gate(model, gain):
    """The model with a regressor of the gate that expects the same gain of every answer over a source of 0.8."""
    part = model.parts["judge"]
    names = part.settings["site_signals"]["all"]
    tensors = {
        n.replace(".all.", ".gate."): x.clone() for n, x in part.tensors.items() if n.startswith("site.all.")
    }
    tensors["site.gate.weights"].zero_()
    tensors["site.gate.usual"].fill_(0.8)
    tensors["site.gate.mean"].zero_()
    tensors["site.gate.deviation"].fill_(1.0)
    tensors["site.gate.weights"][:, len(names) + 1] = gain  # the code of the second candidate, the answer
    settings = {**part.settings, "site_signals": {**part.settings["site_signals"], "gate": names}}
    judge = replace(part, tensors={**part.tensors, **tensors}, settings=settings)
    return replace(model, parts={**model.parts, "judge": judge})


@pytest.mark.parametrize(("gain", "rejected"), [(0.1, 0), (-0.1, 8)])
def test_the_gate_asks_its_own_regressor_where_the_judge_has_one(demo, site_images, gain, rejected):
    adapter = gated(
        with_a_judge_of_the_gate(demo, gain), "norm", GatePolicy(close=1.0, largest_growth=1000.0)
    )
    adapter(site_images["north"])
    assert adapter.counts["rejected"] == rejected
    assert adapter.tests.judge.names == demo.parts["judge"].settings["site_signals"]["all"]


def test_a_judge_without_a_regressor_of_the_gate_is_not_asked(demo):
    part = demo.parts["judge"]
    signals = {kind: names for kind, names in part.settings["site_signals"].items() if kind != "gate"}
    judge = replace(part, settings={**part.settings, "site_signals": signals})
    assert gated(demo, "norm").tests.judge is not None
    assert gated(replace(demo, parts={**demo.parts, "judge": judge}), "norm").tests.judge is None


def with_varied_structures(model):
    """The model, as if the structures of its source varied in size; its gate accepts every answer."""
    part = with_a_judge_of_the_gate(model, 0.1).parts["judge"]
    learning = {**part.settings["learning"], "anatomy": "varied"}
    judge = replace(part, settings={**part.settings, "learning": learning})
    return replace(model, parts={**model.parts, "judge": judge})


@pytest.mark.parametrize("averaged", [0.0, 0.7, 1.0])
def test_where_structures_vary_answers_that_agree_are_given_as_the_mean_with_the_sources(
    demo, site_images, averaged
):
    images = site_images["north"]
    policy = GatePolicy(averaged=averaged, largest_growth=1000.0)
    adapter = gated(with_varied_structures(demo), "norm", policy)
    source, answer = source_logits(demo, images), build_adapter(demo, "norm", {})(images)
    given = adapter(images)
    agreeing = answer_overlap(source, answer, demo.card.benchmark.regions) > averaged
    assert torch.equal(given[~agreeing], answer[~agreeing])
    assert torch.allclose(given[agreeing], mean_answer(source, answer)[agreeing])
    names = [("adapted", "mean of adapted and source")[mean] for mean in agreeing.tolist()]
    assert list(adapter.assessment().choices) == names
    assert agreeing.any() == (averaged < 1)


def test_reset_brings_the_source_back(demo, site_images):
    adapter, images = gated(demo, "tent", lr=1e-2), site_images["summit"][:4]
    first = adapter(images)
    adapter.reset()
    assert torch.equal(adapter(images), first)


def test_a_learned_site_whose_answers_fail_is_undone(demo, site_images):
    images = site_images["north"][:4]
    options = {"folder_steps": 2, "draw": 2, "lr": 0.3}
    adapter = gated(demo, "self-training", **options)
    adapter.learn([images])
    assert adapter.counts["undone"] == 1
    assert torch.equal(adapter.predict_frozen(images), source_logits(demo, images))
    assert "undone" in adapter.remarks()[0]
    again = gated(demo, "self-training", **options)
    assert isinstance(again, Resumable)
    again.load_state(adapter.state())
    assert again.remarks() == adapter.remarks()


def test_an_image_of_nan_keeps_its_empty_answer(demo, site_images):
    images = site_images["north"][:3].clone()
    images[1] = torch.nan
    with pytest.warns(RuntimeWarning):
        assert gated(demo, "norm")(images).isfinite().all()


def test_predict_puts_the_gate_around_methods_that_do_not_judge_themselves(demo, hospitals, tmp_path):
    images = hospitals / "north" / "images"
    predict(demo, images, tmp_path / "gated", method="norm", batch=8, overlays=False)
    predict(demo, images, tmp_path / "source", method="source", batch=8, overlays=False)
    import csv

    rows = list(csv.DictReader((tmp_path / "gated" / "manifest.csv").open()))
    rejected = [row for row in rows if row["gate"] != "accepted"]
    assert rejected
    for row in rejected:
        same = (tmp_path / "source" / row["mask"]).read_bytes()
        assert (tmp_path / "gated" / row["mask"]).read_bytes() == same
    assert all(row["expected_dice"] for row in rows)


def test_the_gate_is_an_adapter_for_every_interface(demo):
    assert isinstance(gated(demo, "norm"), GatedAdapter)
    assert not isinstance(gated(demo, "norm"), Resumable)
