"""The judge chooses a candidate where it expects a gain, and the fallback elsewhere."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ttdg.adaptation import adapt
from ttdg.adaptation.judge.candidates import predict_candidates
from ttdg.adaptation.judge.fit import count_rounds, fit_judge
from ttdg.adaptation.judge.method import EVIDENCE_SPECS, FALLBACK, choose, load_regressor
from ttdg.adaptation.judge.mixing import layer_weights
from ttdg.adaptation.judge.reading_passes import predict_readings
from ttdg.adaptation.judge.regressor import Prediction
from ttdg.checkpoints import load
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.errors import UserError
from ttdg.networks import batchnorm, level_channels
from ttdg.prior import MorphologyPrior, prior_for
from ttdg.types import Part

NAN = float("nan")


def some_images(b: int = 3, size: int = 32, seed: int = 0) -> Tensor:
    return torch.randn(b, 3, size, size, generator=torch.Generator().manual_seed(seed)) + 1


# --- the choice


def agreed(dice: list[list[float]]) -> Tensor:
    """Three members with the same prediction."""
    return torch.tensor(dice).expand(3, -1, -1)


def test_the_best_candidate_is_chosen_only_if_its_gain_exceeds_the_margin():
    predicted = agreed([[0.5, 0.56, 0.4], [0.5, 0.54, 0.4], [0.5, 0.4, 0.9]])
    assert choose(predicted, fallback=0, margin=0.05).tolist() == [1, 0, 2]
    assert choose(predicted, fallback=0, margin=0.01).tolist() == [1, 1, 2]
    assert choose(predicted, fallback=0, margin=1.0).tolist() == [0, 0, 0]


def test_a_gain_on_which_the_members_disagree_is_ignored():
    predicted = agreed([[0.5, 0.6, 0.57]]).clone()
    predicted[:, 0, 1] += torch.tensor([-0.2, 0.0, 0.2])
    assert choose(predicted, fallback=0, margin=0.05).tolist() == [2]
    assert choose(predicted, fallback=0, margin=0.05, deviations=0.0).tolist() == [1]


def test_a_difference_between_members_that_all_candidates_share_is_ignored():
    predicted = agreed([[0.5, 0.56, 0.4]]) + torch.tensor([-0.3, 0.0, 0.4])[:, None, None]
    assert choose(predicted, fallback=0, margin=0.05).tolist() == [1]


def test_a_prediction_of_nan_is_never_chosen():
    predicted = agreed([[0.5, NAN, 0.4], [NAN, NAN, NAN], [NAN, 0.3, 0.2]])
    assert choose(predicted, fallback=0, margin=0.05).tolist() == [0, 0, 0]


# --- the adapter


class Oracle(torch.nn.Module):
    """A regressor that predicts the given candidate of each image to be best."""

    def __init__(self, best: list[int]) -> None:
        super().__init__()
        self.best = best

    def predict(self, x: Tensor) -> Prediction:
        dice = torch.full(x.shape[:2], 0.5)
        dice[torch.arange(len(x)), torch.tensor(self.best)] = 0.9
        return Prediction(dice, torch.full_like(dice, 0.1), dice.expand(2, -1, -1))


@pytest.mark.parametrize("kind", EVIDENCE_SPECS)
def test_the_answer_is_that_of_the_chosen_candidate(ready, kind):
    source = ready("judge", labels=3)
    adapter, images = source.adapt("judge", evidence=kind), some_images()
    adapter.regressor = Oracle([2, 4, 0])
    logits = adapter(images)
    network = copy.deepcopy(adapter.network)
    mixing = layer_weights(network, source.parts["judge"].tensors["mixing"].tolist())
    read = predict_readings(network, adapter.prior, images, readings=adapter.readings, mixing=mixing)
    predictions = predict_candidates(read, adapter.prior, adapter.candidates)
    assert adapter.verdict.chosen.tolist() == [2, 4, 0]
    assert torch.allclose(logits, predictions.logits[[2, 4, 0], [0, 1, 2]], atol=1e-5)


def test_without_an_expected_gain_the_answer_is_the_source_prediction_averaged_over_mirroring(ready):
    source = ready("judge")
    adapter, images = source.adapt("judge", margin=1.0), some_images()
    network = copy.deepcopy(source.network).eval()
    with torch.no_grad():
        both = (network(images).softmax(1) + network(images.flip(3)).flip(3).softmax(1)) / 2
    assert torch.allclose(adapter(images).softmax(1), both, atol=1e-4)
    assert {adapter.verdict.candidates[i] for i in adapter.verdict.chosen} == {FALLBACK}


def test_an_assessment_also_has_the_expected_dice_of_the_answer_that_is_kept_otherwise(ready):
    adapter = ready("judge").adapt("judge")
    kept = adapter.candidate_names.index(FALLBACK)
    adapter.regressor = Oracle([0, kept, 1])
    adapter(some_images())
    assert adapter.assessment().dice.tolist() == pytest.approx([0.9, 0.9, 0.9])
    assert adapter.assessment().unadapted.tolist() == pytest.approx([0.5, 0.9, 0.5])


def test_the_option_always_chooses_one_candidate_for_every_image(ready):
    source, images = ready("judge"), some_images()
    adapter = source.adapt("judge", always="mean of all")
    adapter.regressor = Oracle([0, 1, 2])
    adapter(images)
    assert {adapter.verdict.candidates[i] for i in adapter.verdict.chosen} == {"mean of all"}
    with pytest.raises(UserError, match="unknown candidate 'mean of al'"):
        source.adapt("judge", always="mean of al")


def test_the_network_stays_unchanged_and_in_the_source_mode(ready):
    source = ready("judge")
    adapter = source.adapt("judge")
    for seed in range(3):
        adapter(some_images(2 + seed, seed=seed))
    before = source.network.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in adapter.network.state_dict().items())
    assert all(layer.mode == batchnorm.EVAL for layer in batchnorm.layers(adapter.network))


def test_a_verdict_holds_the_predictions_of_every_candidate(ready):
    adapter = ready("judge").adapt("judge")
    assert adapter.verdict is None
    adapter(some_images())
    verdict = adapter.verdict
    assert (
        verdict.prediction.dice.shape == verdict.prediction.half_width.shape == (3, len(verdict.candidates))
    )
    adapter.reset()
    assert adapter.verdict is None


def test_a_judge_that_was_fitted_with_another_prior_is_refused(ready):
    source = ready("judge")
    prior = source.parts["prior"]
    mine = Part(source.parts["judge"].tensors, {**source.parts["judge"].settings, "prior": prior.digest})
    assert adapt(replace(source, parts={"prior": prior, "judge": mine}), "judge")
    torch.manual_seed(5)
    other = prior_for(level_channels(source.network), 2, node_dim=16, points=8, per_tissue=6).to_part()
    with pytest.raises(UserError, match="another prior"):
        adapt(replace(source, parts={"prior": other, "judge": mine}), "judge")


def test_evidence_that_was_not_fitted_is_named(ready):
    part = ready("judge").parts["judge"]
    poor = Part({k: v for k, v in part.tensors.items() if not k.startswith("universe.")}, part.settings)
    with pytest.raises(UserError, match="not fitted to 'universe' evidence"):
        load_regressor(poor, "universe")


# --- the fit


def a_site(n: int, labels: int = 2, masks: bool = True) -> Arrays:
    generator = torch.Generator().manual_seed(n)
    truth = torch.zeros(n, 32, 32, dtype=torch.uint8)
    truth[:, 8:24, 8:20] = 1
    images = torch.randint(128, (n, 3, 32, 32), generator=generator).to(torch.uint8) + 80 * truth[:, None]
    return Arrays(images, truth if masks else None, tuple(str(i) for i in range(n)))


BENCHMARK = Benchmark("b", ("background", "a"), Exact({0: 0, 1: 1}), {"a": (1,)}, "minmax", 32)


def test_a_fit_is_deterministic_reports_progress_and_leaves_the_network_unchanged(ready):
    source = ready("judge")
    prior = MorphologyPrior.from_part(source.parts["prior"])
    before, classes = copy.deepcopy(source.network.state_dict()), [type(m) for m in source.network.modules()]
    reported: list[int] = []
    sites = {"big": a_site(5), "small": a_site(2)}

    def fit() -> Part:
        return fit_judge(
            source.network,
            prior,
            sites,
            sites,
            BENCHMARK,
            draws=1,
            mixing_steps=1,
            progress=reported.append,
        )

    a, b = fit(), fit()
    assert all(torch.equal(value, b.tensors[name]) for name, value in a.tensors.items())
    assert reported == 2 * list(range(1, 1 + count_rounds(sites, 1)))
    assert count_rounds(sites, 1) == 3 + 1  # the small site has no group of four
    assert a.settings["images"] == 4 + 4 + 5 + 2
    assert [type(m) for m in source.network.modules()] == classes
    assert all(torch.equal(value, before[name]) for name, value in source.network.state_dict().items())


def test_a_judge_with_four_readings_runs_four_and_lists_their_candidates(ready):
    source = ready("judge")
    prior, sites = MorphologyPrior.from_part(source.parts["prior"]), {"site": a_site(5)}
    part = fit_judge(source.network, prior, sites, sites, BENCHMARK, draws=1, mixing_steps=1, readings="four")
    adapter = adapt(replace(source, parts={**source.parts, "judge": part}), "judge")
    sizes: list[int] = []
    first = next(m for m in adapter.network.modules() if isinstance(m, torch.nn.Conv2d))
    first.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    adapter(some_images(3))
    assert sizes == [4 * 3]
    assert not {"mix .1", "mix .5", "batch"} & set(adapter.candidate_names)
    assert len(adapter.candidate_names) == adapter.verdict.prediction.dice.shape[1] == 7
    with pytest.raises(UserError, match="unknown readings 'for'"):
        fit_judge(source.network, prior, sites, sites, BENCHMARK, readings="for")


def test_a_fit_without_controls_gives_the_same_other_regressors(ready):
    source = ready("judge")
    prior, sites = MorphologyPrior.from_part(source.parts["prior"]), {"site": a_site(5)}
    full, few = (
        fit_judge(source.network, prior, sites, sites, BENCHMARK, draws=1, mixing_steps=1, controls=controls)
        for controls in (True, False)
    )
    controls = {name for name in full.tensors if "random" in name or "untyped" in name or "no-class" in name}
    assert controls == set(full.tensors) - set(few.tensors)
    assert all(torch.equal(value, full.tensors[name]) for name, value in few.tensors.items())
    with pytest.raises(UserError, match="with its controls"):
        adapt(
            replace(source, parts={**source.parts, "judge": few}),
            "universe-choice",
            variant="random-universe",
        )


def test_without_the_class_mask_a_node_may_match_points_of_any_tissue(ready):
    source = ready("judge", labels=3)
    adapters = [source.adapt("universe-choice", variant=variant) for variant in ("full", "no-class-mask")]
    masked, free = (adapter.prior for adapter in adapters)
    nodes = masked.nodes(torch.randn(1, masked.spec.node_dim, 8, 8), torch.randint(3, (1, 32, 32)))
    assert (masked.scores(nodes) < -1e6).any()
    assert (free.scores(nodes).abs() < 1e3).all()
    assert torch.equal(free.scores(nodes), masked.scores(nodes, typed=False))


@pytest.mark.parametrize("variant", ["pairwise", "no-consensus"])
def test_ablations_of_a_matching_between_images_are_refused_with_the_reason(ready, variant):
    with pytest.raises(UserError, match="by itself"):
        ready("judge").adapt("universe-choice", variant=variant)


def test_held_out_images_with_masks_are_required(ready):
    source = ready("judge")
    prior = MorphologyPrior.from_part(source.parts["prior"])
    for held_out in ({}, {"site": a_site(4, masks=False)}):
        with pytest.raises(UserError, match="held-out source images with masks"):
            fit_judge(source.network, prior, {"site": a_site(4)}, held_out, BENCHMARK)


def test_the_embedded_model_has_a_prior_and_a_judge_that_still_fit_the_code():
    model = load("demo")
    for method in ("universe-choice", "judge", "universe-gradient"):
        assert adapt(model, method)(torch.rand(2, 3, 64, 64)).isfinite().all()
