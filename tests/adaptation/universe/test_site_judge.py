"""The site's judge compares the judge's prediction, the adapted one and their mean."""

import numpy as np
import pytest
import torch

from ttdg.adaptation.judge.regressor import CLIP
from ttdg.adaptation.universe.site_judge import (
    ADAPTED,
    CANDIDATES,
    MEAN,
    SITE_EVIDENCE,
    UNADAPTED,
    SiteJudge,
    signal_names,
    site_signals,
    stack_candidates,
)


def probabilities(count: int, labels: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(count, labels, 32, 32, generator=generator)).softmax(1)


@pytest.fixture(scope="module")
def learner(ready):
    return ready("universe", labels=3).adapt("universe")


def signals_of(learner, images, P):
    judge, features = learner.reader.judge, learner.reader.features(images)
    return site_signals(learner.prior, judge.locations, judge.regions, images, features, P)


def some_images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_the_third_candidate_is_the_mean_of_the_others():
    one, two = probabilities(2), probabilities(2, seed=1)
    P = stack_candidates(one, two)
    assert len(P) == len(CANDIDATES)
    assert torch.equal(P[UNADAPTED], one)
    assert torch.equal(P[ADAPTED], two)
    assert torch.allclose(2 * P[MEAN], one + two)


def test_every_signal_is_finite_for_each_candidate_and_image(learner):
    images = some_images()
    certain = torch.nn.functional.one_hot(torch.zeros(3, 32, 32, dtype=torch.long), 3).movedim(-1, 1).float()
    signals = signals_of(
        learner, images, stack_candidates(probabilities(3), certain)
    )  # zeros have no logarithm
    assert all(value.shape == (3, 3) and value.isfinite().all() for value in signals.values())


def test_signals_do_not_depend_on_the_other_images_of_the_batch(learner):
    images, P = some_images(), stack_candidates(probabilities(3), probabilities(3, seed=1))
    order = [2, 0, 1]
    whole, shuffled = signals_of(learner, images, P), signals_of(learner, images[order], P[:, order])
    alone = signals_of(learner, images[:1], P[:, :1])
    for name, value in whole.items():
        assert torch.allclose(shuffled[name], value[:, order], atol=1e-3), name
        assert torch.allclose(alone[name], value[:, :1], atol=1e-3), name


def test_equal_candidates_have_equal_signals_and_different_candidates_do_not(learner):
    images, one = some_images(), probabilities(3)
    same = signals_of(learner, images, stack_candidates(one, one))
    other = signals_of(learner, images, stack_candidates(one, probabilities(3, seed=1)))
    for name, value in same.items():
        assert torch.allclose(value[UNADAPTED], value[ADAPTED], atol=1e-4), name
    assert any((value[UNADAPTED] - value[ADAPTED]).abs().max() > 1e-2 for value in other.values())


def test_evidence_without_the_universe_uses_all_other_signals():
    names = ["entropy", "universe energy", "size", "universe use"]
    assert signal_names(names, "no-universe") == ["entropy", "size"]
    assert signal_names(names, "all") == names


@pytest.mark.parametrize("evidence", SITE_EVIDENCE)
def test_the_prediction_is_linear_in_the_standardised_signals_of_its_own_regressor(learner, ready, evidence):
    part = ready("universe", labels=3).parts["judge"]
    judge = SiteJudge(part, evidence, torch.device("cpu"))
    images, P = some_images(), stack_candidates(probabilities(3), probabilities(3, seed=1))
    signals = signals_of(learner, images, P)
    assert any(name.startswith("universe") for name in judge.names) is (evidence == "all")
    mean, deviation, usual, weights = (
        part.tensors[f"site.{evidence}.{name}"].double().numpy()
        for name in ("mean", "deviation", "usual", "weights")
    )
    predicted = judge.predict(signals)
    for image in range(3):
        for candidate in range(3):
            x = [signals[name][candidate, image].item() for name in judge.names]
            z = np.clip((np.array(x + np.eye(3)[candidate].tolist()) - mean) / deviation, -CLIP, CLIP)
            expected = [(z @ w + usual).mean() for w in weights]
            assert np.allclose(predicted.members[:, image, candidate].numpy(), expected, atol=1e-3)
