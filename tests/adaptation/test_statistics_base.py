"""The BatchNorm statistics under a method: which methods allow another base, and what it changes."""

import math

import pytest
import torch

from ttdg.adaptation import METHODS, build_adapter, defaults, effective_statistics
from ttdg.adaptation.statistics_base import BATCH_SHARE, allows_statistics
from ttdg.errors import UserError

ALLOWED = sorted(name for name, method in METHODS.items() if allows_statistics(method))
NEUTRAL = {
    "cotta": {"threshold": 0.0}
}  # options with which, at a rate of 0, the method predicts as the plain network
CONTROL = {"eval": "source", "mix": "alpha-bn", "batch": "norm"}


def some_images(seed: int = 1) -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) + 1


def test_the_methods_on_batch_statistics_allow_another_base():
    assert {*ALLOWED} == {"tent", "sar", "cotta", "grata", "dltta", "tegda", "a3-tta", "tasd-r"}


def test_the_mixture_is_that_of_the_control():
    assert defaults("alpha-bn")["alpha"] == BATCH_SHARE


@pytest.mark.parametrize("statistics", ["own", *CONTROL])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_only_a_base_that_differs_from_the_own_one_has_an_effect(name, statistics):
    differs = name in ALLOWED and statistics in ("eval", "mix")
    assert effective_statistics(METHODS[name], statistics) == (statistics if differs else "own")


@pytest.mark.parametrize("statistics", sorted(CONTROL))
@pytest.mark.parametrize("name", ALLOWED)
def test_at_a_rate_of_zero_a_method_answers_as_the_control_with_its_statistics(name, statistics, ready):
    model, images = ready(name), some_images()
    options = {"lr": 0.0, **NEUTRAL.get(name, {})}
    answer = build_adapter(model, name, options, statistics=statistics)(images)
    torch.testing.assert_close(
        answer, build_adapter(model, CONTROL[statistics], {})(images), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ALLOWED)
def test_a_method_still_adapts_on_another_base_and_reset_restores_it(name, ready):
    sure = {"margin": math.inf, "recover": -math.inf} if name == "sar" else {}

    def second_answer(lr):
        adapter = build_adapter(ready(name), name, {"lr": lr, **sure}, statistics="eval")
        adapter(some_images())
        return adapter, adapter(some_images(2))

    adapter, answer = second_answer(1e-2)
    assert not torch.equal(answer, second_answer(0.0)[1])
    adapter.reset()
    source = ready(name).network.state_dict()
    assert all(torch.equal(value, source[key]) for key, value in adapter.network.state_dict().items())


def test_the_network_of_the_caller_and_later_adapters_keep_their_statistics(ready):
    model, images = ready("tent"), some_images()
    before = build_adapter(model, "tent", {})(images)
    build_adapter(model, "tent", {}, statistics="eval")(images)
    assert torch.equal(build_adapter(model, "tent", {})(images), before)


def test_an_unknown_base_is_refused_with_the_nearest_name(ready):
    with pytest.raises(UserError, match=r"'evil'.*eval"):
        build_adapter(ready("tent"), "tent", {}, statistics="evil")
