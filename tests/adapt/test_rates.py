"""The learned step: rates fitted at source time, a step that leaves nothing behind, and no label at test time."""

import copy
import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ttdg.adapt import batchnorm, rates
from ttdg.adapt.affine import Affine, Rates
from ttdg.adapt.constant_step import mean_steps, stepped, tuned_step
from ttdg.adapt.rates import CEILING, PLAIN, UNIVERSES, LearnedStep, Own, agreement, fit_rates, supervised
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.errors import UserError
from ttdg.prior import MorphologyPrior

BENCHMARK = Benchmark(
    "noise", ("background", "a", "b"), Exact({0: 0, 1: 1, 2: 2}), {"a": (1,), "b": (2,)}, "minmax", 32
)
EVERY = (*UNIVERSES, *PLAIN)


@pytest.fixture(scope="module")
def source(ready: Callable) -> tuple[nn.Module, MorphologyPrior]:
    made = ready("universe-gradient", labels=3)
    return made.network, MorphologyPrior.from_part(made.parts["prior"])


@pytest.fixture(scope="module")
def site() -> Arrays:
    """Bright squares within grey ones, on noise."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(80, (8, 3, 32, 32), generator=generator)
    masks = torch.zeros(8, 32, 32, dtype=torch.uint8)
    masks[:, 6:26, 6:26], masks[:, 11:21, 11:21] = 1, 2
    return Arrays((images + 80 * masks[:, None]).to(torch.uint8), masks, tuple("abcdefgh"))


def some_images(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def some_rates(network: nn.Module, value: float, unit: bool = False) -> Rates:
    values = torch.full((len(batchnorm.affine(network)),), value)
    return Rates(values, torch.ones_like(values) if unit else None)


@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize("unit", [False, True])
def test_with_rates_of_zero_the_answer_is_exactly_the_networks(variant, unit, source):
    network, prior = source
    mixed = rates.prepared(network)
    adapter = LearnedStep(network, prior, some_rates(network, 0.0, unit), variant)
    with torch.no_grad():
        assert torch.equal(adapter(some_images()), mixed(some_images()))


@pytest.mark.parametrize("variant", EVERY)
def test_a_step_changes_the_answer_and_leaves_the_weights_bit_for_bit(variant, source):
    network, prior = source
    adapter = LearnedStep(network, prior, some_rates(network, 0.05), variant)
    before = copy.deepcopy(adapter.network.state_dict())
    first = adapter(some_images())
    adapter(some_images(1))
    assert torch.equal(adapter(some_images()), first)
    assert not first.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in adapter.network.state_dict().items())
    with torch.no_grad():
        assert not torch.equal(first, adapter.network(some_images()))


def test_a_batch_of_nan_moves_nothing(source):
    network, prior = source
    adapter = LearnedStep(network, prior, some_rates(network, 0.05), "entropy")
    gradient = adapter.theta.gradient(adapter.network(some_images() * torch.nan).mean())
    assert not adapter.theta.step(gradient, adapter.rates).any()


def test_a_small_step_lowers_the_loss_it_follows(source):
    network, prior = source
    adapter = LearnedStep(network, prior, some_rates(network, 1e-3), "entropy")
    with torch.no_grad():
        before = PLAIN["entropy"](adapter.network(some_images()), {})
    assert PLAIN["entropy"](adapter(some_images()), {}) < before


def test_no_argument_could_carry_a_label(source):
    assert list(inspect.signature(LearnedStep.__call__).parameters) == ["self", "images"]
    network, prior = source
    with pytest.raises(UserError, match="no inner loss 'supervised'"):
        LearnedStep(network, prior, some_rates(network, 0.0), CEILING)


def test_the_steps_unit_is_the_root_mean_square_of_each_tensor(source):
    theta = Affine(rates.prepared(source[0]))
    gradient = torch.randn(len(theta.owner), generator=torch.Generator().manual_seed(0))
    values = torch.linspace(0.1, 2, len(theta.sizes))
    step = theta.step(gradient, Rates(values)).split(theta.sizes)
    assert torch.allclose(torch.stack([part.square().mean().sqrt() for part in step]), values, rtol=1e-4)


def tiny() -> nn.Module:
    """Smooth, so that differences are derivatives."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3)]
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize("unit", [False, True])
def test_the_slope_of_the_rates_is_the_finite_difference_of_the_outer_loss(unit):
    network = rates.prepared(tiny(), batchnorm.EVAL)  # mixed statistics are constants to the gradient alone
    theta, images = Affine(network), some_images().double()
    labels = torch.randint(3, (4, 30, 30), generator=torch.Generator().manual_seed(0))
    gradient = theta.gradient(PLAIN["entropy"](network(images), {}))
    log_rates = torch.tensor([-1.0, -2.0, -1.5, -0.5], dtype=torch.double)
    units = theta.size(gradient) * 2 if unit else None

    def outer(log_rates: Tensor) -> Tensor:
        with torch.no_grad(), theta.moved(theta.step(gradient, Rates(log_rates.exp(), units))):
            return supervised(network(images), labels)

    step = theta.step(gradient, Rates(log_rates.exp(), units))
    slope = rates.slope(theta, network, step, images, labels)
    little = 1e-5 * torch.eye(4, dtype=torch.double)
    differences = torch.stack([outer(log_rates + e) - outer(log_rates - e) for e in little]) / 2e-5
    assert slope.abs().min() > 1e-5
    assert torch.allclose(slope, differences, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("normalised", [True, False])
def test_fitting_touches_neither_network_nor_prior(normalised, source, site):
    weights = [copy.deepcopy(part.state_dict()) for part in source]
    flags = [p.requires_grad for part in source for p in part.parameters()]
    fitted = fit_rates(*source, [site], BENCHMARK, variants=EVERY, steps=2, normalised=normalised)
    assert all((found.values > 0).all() and found.values.isfinite().all() for found in fitted.values())
    assert all((found.unit is None) == normalised for found in fitted.values())
    for part, before in zip(source, weights, strict=True):
        assert all(torch.equal(value, before[name]) for name, value in part.state_dict().items())
    assert [p.requires_grad for part in source for p in part.parameters()] == flags


def test_fitting_is_a_function_of_its_seed(source, site):
    a, b, c = (
        fit_rates(*source, [site], BENCHMARK, variants=("entropy",), steps=2, seed=seed)["entropy"].values
        for seed in (0, 0, 1)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_step_on_the_supervised_loss_helps_and_more_so_with_fitted_rates(source, site):
    start = {CEILING: some_rates(source[0], rates.START)}
    fitted = fit_rates(*source, [site], BENCHMARK, variants=(CEILING,), steps=5, lr=0.5)
    before, after = (agreement(*source, [site], BENCHMARK, r, episodes=4)[CEILING] for r in (start, fitted))
    assert after.cosine == pytest.approx(1.0, abs=1e-5)
    assert after.positive == 1
    assert after.size == pytest.approx(1.0, abs=1e-5)
    assert before.before == after.before
    assert after.after < before.after < before.before


def test_a_gradient_turned_round_disagrees_and_its_rates_vanish(source, site, monkeypatch):
    """An inner loss that climbs what the labels would descend: all that a rate can do is to shrink."""
    found = rates._gradients

    def turned(theta, losses, network, images, labels, variants):
        wanted = found(theta, {}, network, images, labels, (CEILING,))[CEILING]
        return {name: wanted if name == CEILING else -wanted for name in variants}

    monkeypatch.setattr(rates, "_gradients", turned)
    fitted = fit_rates(*source, [site], BENCHMARK, variants=("entropy",), steps=5, lr=0.5)
    seen = agreement(*source, [site], BENCHMARK, fitted, episodes=4)["entropy"]
    assert seen.cosine == pytest.approx(-1.0, abs=1e-5)
    assert seen.positive == 0
    assert fitted["entropy"].values.mean() < rates.START / 2


def test_own_weights_mix_as_a_uniform_mixture_does(source):
    network = rates.prepared(source[0], batchnorm.Mix(0.3))
    own = copy.deepcopy(network)
    for layer in batchnorm.layers(own):
        layer.own_rho = torch.tensor([0.3])
    batchnorm.use(own, Own())
    with torch.no_grad():
        assert torch.allclose(network(some_images()), own(some_images()), atol=1e-5)


def test_a_hospital_is_one_site_and_follows_from_the_seed(site):
    empty = Arrays(site.images, torch.zeros_like(site.masks), site.cases)
    drawn, fewer = (
        list(rates.hospitals([site, empty], BENCHMARK, count, 4, 0, torch.device("cpu"))) for count in (6, 3)
    )
    assert [len(images) for images, _ in drawn] == [4] * 6
    filled = torch.stack([labels.flatten(1).any(1) for _, labels in drawn])
    assert set(filled.sum(1).tolist()) == {0, 4}
    assert all(
        torch.equal(a, b) for x, y in zip(drawn, fewer, strict=False) for a, b in zip(x, y, strict=True)
    )


def test_the_constant_step_of_one_hospital_is_the_step_taken_there(source, site):
    fitted = {"entropy": some_rates(source[0], 0.02)}
    step = mean_steps(*source, [site], BENCHMARK, fitted, episodes=1, seed=3)["entropy"]
    images, _ = next(rates.hospitals([site], BENCHMARK, 1, 4, 3, torch.device("cpu")))
    adapter = LearnedStep(*source, fitted["entropy"], "entropy")
    with torch.no_grad():
        assert torch.equal(stepped(source[0], step)(images), adapter(images))
        assert not torch.equal(stepped(source[0], step)(some_images()), adapter(some_images()))


def test_the_tuned_constant_step_lowers_the_supervised_loss(source, site):
    step = tuned_step(source[0], [site], BENCHMARK, steps=4, lr=0.02)
    images, labels = next(rates.hospitals([site], BENCHMARK, 1, 4, 9, torch.device("cpu")))
    with torch.no_grad():
        before, after = (
            supervised(n(images), labels) for n in (rates.prepared(source[0]), stepped(source[0], step))
        )
    assert after < before
