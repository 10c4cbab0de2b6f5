"""Fitting the part "judge" with simulated hospitals at which the learner runs."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from ttdg.adaptation import adapt
from ttdg.adaptation.site_learning.home import describe
from ttdg.adaptation.size_tolerance import size_gain, tolerates_sizes
from ttdg.adaptation.universe.anatomy import anatomy_of
from ttdg.adaptation.universe.fit import (
    HOME_EVERY,
    HOSPITAL,
    SiteEvidence,
    count_fit_rounds,
    fit_judges,
    gain_error,
    simulated_hospitals,
)
from ttdg.adaptation.universe.site_judge import GATE, SITE_EVIDENCE
from ttdg.checkpoints.parts import load_parts, save_part
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.errors import UserError
from ttdg.prior import MorphologyPrior

BENCHMARK = Benchmark("noise", ("background", "disc"), Exact({0: 0, 1: 1}), {"disc": (1,)}, "minmax", 32)


def a_site(count: int, seed: int) -> Arrays:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, 32, 32, dtype=torch.uint8)
    masks[:, 8:20, 10:24] = 1
    images = 40 * masks[:, None] + torch.randint(150, (count, 3, 32, 32), generator=generator)
    images[:, :, 0, 0], images[:, :, 0, 1] = 0, 255  # minmax normalisation keeps such images
    return Arrays(images.to(torch.uint8), masks, tuple(f"{seed}-{i}" for i in range(count)))


TRAIN = {"a": a_site(6, 0), "b": a_site(3, 1)}
HELD_OUT = {"a": a_site(5, 3), "none held out": a_site(0, 4)}
QUICK = {"draws": 1, "mixing_steps": 1, "learning_steps": 2, "learning_draw": 2, "folder_steps": 3}


@pytest.fixture(scope="module")
def source(ready):
    return ready("judge")


@pytest.fixture(scope="module")
def fitted(source):
    """The part, the network after the fit, and the rounds that were reported."""
    network, rounds = copy.deepcopy(source.network).train(), []
    prior = MorphologyPrior.from_part(source.parts["prior"])
    part = fit_judges(
        network, prior, TRAIN, HELD_OUT, BENCHMARK, hospitals=2, progress=rounds.append, **QUICK
    )
    return part, network, rounds


def parts(source, part):
    return replace(source, parts={**source.parts, "judge": part})


def test_there_is_a_regressor_for_every_kind_of_evidence_and_for_the_gate(fitted):
    part = fitted[0]
    for kind in (*SITE_EVIDENCE, GATE):
        names = part.settings["site_signals"][kind]
        assert len(part.tensors[f"site.{kind}.mean"]) == len(names) + 3  # and a code of three candidates
        assert all(x.isfinite().all() for n, x in part.tensors.items() if n.startswith(f"site.{kind}."))
    assert set(part.settings["site_signals"]["no-universe"]) < set(part.settings["site_signals"]["all"])


def hospitals_whose_gain(shown: float, hidden: float) -> list[SiteEvidence]:
    """Six hospitals; a signal shows one part of the gain of a hospital, and nothing shows the other."""
    found = []
    for number, generator in ((n, torch.Generator().manual_seed(n)) for n in range(6)):
        visible, own = shown * torch.randn(20, generator=generator), hidden * (-1) ** number
        dice = torch.stack([torch.full((20,), 0.5), 0.5 + visible + own, torch.full((20,), 0.5)], 1)[
            ..., None
        ]
        found.append(SiteEvidence({"gain": torch.stack([torch.zeros(20), visible, torch.zeros(20)])}, dice))
    return found


@pytest.mark.parametrize("hidden", [0.02, 0.05])
def test_the_error_of_an_expected_gain_is_what_no_signal_shows_of_a_new_hospital(hidden):
    error = gain_error(hospitals_whose_gain(0.01, hidden), ["gain"], seed=0)
    assert hidden < error < 1.6 * hidden  # hospitals of both signs: the others mislead a little


def test_the_error_is_small_where_signals_show_the_gain_and_unknown_for_two_hospitals(fitted):
    assert gain_error(hospitals_whose_gain(0.05, 0.0), ["gain"], seed=0) < 0.01
    assert gain_error(hospitals_whose_gain(0.05, 0.05)[:2], ["gain"], seed=0) == 0
    assert fitted[0].settings["site_gain_errors"] == dict.fromkeys(SITE_EVIDENCE, 0.0)


def test_the_anatomy_of_the_training_labels_is_kept(fitted):
    assert fitted[0].settings["learning"]["anatomy"] == anatomy_of(site.masks for site in TRAIN.values())


def test_the_fit_says_whether_the_network_tolerates_other_sizes(fitted, source):
    gain = size_gain(source.network, HELD_OUT, BENCHMARK)
    assert fitted[0].settings["learning"]["sizes"] is tolerates_sizes(gain)


def test_fitting_does_not_change_the_network(fitted, source):
    network = fitted[1]
    before = source.network.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_every_round_is_reported_once(fitted):
    assert fitted[2] == list(range(1, count_fit_rounds(HELD_OUT, draws=1, hospitals=2) + 1))


def test_the_part_describes_the_images_of_the_source_sites(fitted):
    mean, deviation = (fitted[0].tensors[f"home.{name}"].numpy() for name in ("mean", "deviation"))
    assert len(mean) == len(TRAIN)
    for row, name in enumerate("ab"):
        described = describe(TRAIN[name].images.float() / 255).double().numpy()
        assert np.allclose(mean[row], described.mean(0), atol=1e-4)
        assert np.allclose(deviation[row], np.maximum(described.std(0), 1e-3), atol=1e-4)


def test_the_learner_takes_the_options_with_which_its_judge_was_fitted(fitted, source):
    learner = adapt(parts(source, fitted[0]), "universe", rate=2.0)
    assert (learner.lr, learner.folder_steps, learner.draw, learner.warm_up) == (2e-4, 3, 2, 2)
    learner = adapt(parts(source, fitted[0]), "universe", folder_steps=7, draw=5)
    assert (learner.folder_steps, learner.draw) == (7, 5)


def test_a_judge_without_hospitals_serves_the_judge_and_is_refused_by_universe(source):
    prior, rounds = MorphologyPrior.from_part(source.parts["prior"]), []
    part = fit_judges(
        source.network, prior, TRAIN, HELD_OUT, BENCHMARK, hospitals=0, progress=rounds.append, **QUICK
    )
    assert len(rounds) == count_fit_rounds(HELD_OUT, draws=1, hospitals=0)
    assert adapt(parts(source, part), "judge")(torch.rand(1, 3, 32, 32)).isfinite().all()
    with pytest.raises(UserError, match="without learned hospitals; fit the part 'judge' again"):
        adapt(parts(source, part), "universe")


def test_a_saved_part_answers_as_the_fitted_one(fitted, source, tmp_path):
    save_part(tmp_path, "judge", fitted[0], "hash")
    loaded = load_parts(tmp_path, "hash")["judge"]
    assert loaded.settings == fitted[0].settings
    assert loaded.tensors.keys() == fitted[0].tensors.keys()
    assert all(torch.equal(loaded.tensors[name], value) for name, value in fitted[0].tensors.items())
    images = torch.rand(2, 3, 32, 32)
    one, two = (
        adapt(parts(source, part), "universe", steps=2, anatomy="steady") for part in (fitted[0], loaded)
    )
    assert torch.equal(one(images), two(images))


def test_the_first_hospital_and_every_fourth_are_a_source_site_as_it_is():
    sites = {"a": a_site(5, 3), "b": a_site(HOSPITAL + 3, 4), "empty": a_site(0, 5)}
    found = list(simulated_hospitals(sites, 8, 0, torch.device("cpu")))
    for number, (images, labels) in enumerate(found):
        site = sites["ab"[number % 2]]
        own = {image.numpy().tobytes() for image in site.images}
        kept = sum((255 * image).round().to(torch.uint8).numpy().tobytes() in own for image in images)
        assert len(images) == len(labels) == min(HOSPITAL, len(site.cases))
        assert images.min() >= 0
        assert images.max() <= 1
        assert kept == (len(images) if number % HOME_EVERY == 0 else 0)
