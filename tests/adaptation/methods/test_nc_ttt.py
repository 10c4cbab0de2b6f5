"""NC-TTT: the soft target, which values change, and the output of the discriminator after a step."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.networks import NetworkSpec, Segmenter, batchnorm, pyramid
from ttdg.networks.heads.noise import SIGMAS, NoiseDiscriminator, large_noise_probability, noise_loss

EARLY = tuple(f"unet.encoder.stages.{stage}." for stage in range(3))


@given(st.integers(1, 6), st.floats(0.05, 1), st.floats(0.01, 0.04), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_target_is_the_posterior_of_much_noise(dimension, large, small, seed):
    noise = (
        torch.randn(7, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * small
    )
    log_p = [
        -(noise**2).sum(1) / (2 * s**2) - dimension * math.log(s) for s in (large, small)
    ]  # log-densities of the two Gaussians, up to a shared constant
    expected = torch.stack(log_p).softmax(0)[0]
    found = large_noise_probability(noise.square().sum(1), dimension, (large, small))
    assert torch.allclose(found, torch.where(expected < 1e-6, 0.0, expected), atol=1e-9)


def test_much_noise_has_the_higher_target():
    targets = [
        large_noise_probability((sigma * torch.randn(500, 8)).square().sum(1), 8).mean() for sigma in SIGMAS
    ]
    assert targets[0] > 0.9 > 0.1 > targets[1]


def test_the_target_does_not_overflow_in_many_dimensions():
    assert large_noise_probability(torch.tensor([0.0, 1e6]), 1536).tolist() == [0.0, 1.0]


def test_values_behind_the_level_stay_bit_identical(ready):
    source = ready("nc-ttt")
    adapter = source.adapt("nc-ttt", lr=1e-2, steps=3)
    adapter(torch.randn(2, 3, 32, 32))
    before, now = source.network.state_dict(), adapter.network.state_dict()
    for name, value in before.items():
        if "num_batches" not in name:
            assert torch.equal(value, now[name]) is not name.startswith(EARLY), name


def test_the_early_encoder_is_what_the_level_depends_on(ready):
    network = ready("nc-ttt").network
    producer, _ = pyramid.level_modules(network)[2]
    found = {id(p) for p in pyramid.parameters_before(network, producer)}
    named = {name for name, p in network.named_parameters() if id(p) in found}
    assert named == {name for name, _ in network.named_parameters() if name.startswith(EARLY)}


def test_the_levels_of_a_resnet_are_its_stem_and_stages():
    network = Segmenter(NetworkSpec(2, "resnet18")).eval()
    names = {module: name.removeprefix("unet.encoder.") for name, module in network.named_modules()}
    made = [names[producer] for producer, _ in pyramid.level_modules(network)]
    assert made == ["act", "layer1", "layer2", "layer3", "layer4"]


def test_stopping_at_a_level_gives_that_level_and_runs_nothing_behind_it(ready):
    network, x = ready("nc-ttt").network, torch.randn(1, 3, 32, 32)
    producer, _ = pyramid.level_modules(network)[2]
    behind = []
    network.unet.encoder.stages[3].register_forward_hook(lambda *_: behind.append(1))
    assert torch.equal(pyramid.encode_to(network, producer, x), network.encode(x)[2])
    assert len(behind) == 1  # in the whole pass only


def test_features_look_less_noisy_afterwards(ready):
    adapter, x = ready("nc-ttt").adapt("nc-ttt", lr=1e-3, steps=1), torch.randn(2, 3, 32, 32)
    adapter(x)
    first = adapter.loss.item()
    adapter.steps = 20
    adapter(x)
    assert adapter.loss.item() < first - 1e-3


def test_the_discriminator_keeps_its_weights_and_statistics(ready):
    source = ready("nc-ttt")
    adapter = source.adapt("nc-ttt", lr=1e-2)
    adapter(torch.randn(2, 3, 32, 32))
    part = source.parts["nc-ttt"].tensors
    assert all(torch.equal(value, part[name]) for name, value in adapter.discriminator.state_dict().items())


def test_the_projection_is_orthogonal_and_keeps_the_axes_of_least_variance():
    features = torch.randn(4, 6, 10, 10) * torch.tensor([5.0, 0.1, 3, 0.2, 4, 2]).view(1, -1, 1, 1) + 7
    made = NoiseDiscriminator(6, 2)
    made.calibrate(features)
    u = made.project(features).movedim(1, -1).flatten(0, -2)
    assert u.mean(0).abs().max() < 1e-3
    weight = made.project.weight[:, :, 0, 0]
    assert weight.abs().argmax(1).tolist() == [1, 3]
    gram = weight @ weight.T
    assert torch.allclose(gram, gram[0, 0] * torch.eye(2), atol=1e-5)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_every_batch_begins_at_the_source(ready, optimiser):
    a, b = (ready("nc-ttt").adapt("nc-ttt", lr=1e-3, steps=3, optimiser=optimiser) for _ in range(2))
    a(torch.randn(2, 3, 32, 32))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(a(x), b(x))


def test_sgd_has_no_momentum(ready):
    """Three steps θ ← θ − lr·∇ mean softplus(d), with BatchNorm in training mode, by plain autograd."""
    source, lr, x = ready("nc-ttt"), 1e-2, torch.randn(2, 3, 32, 32)
    adapter = source.adapt("nc-ttt", lr=lr, steps=3, optimiser="sgd")
    adapter(x)
    network, d = copy.deepcopy(source.network).train(), adapter.discriminator
    early = {name: p for name, p in network.named_parameters() if name.startswith(EARLY)}
    for _ in range(3):
        loss = torch.log1p(d(network.encode(x)[2]).exp()).mean()
        gradients = torch.autograd.grad(loss, list(early.values()))
        with torch.no_grad():
            for p, g in zip(early.values(), gradients, strict=True):
                p -= lr * g
    now, start = dict(adapter.network.named_parameters()), dict(source.network.named_parameters())
    assert max((p - start[name]).abs().max() for name, p in early.items()) > 1e-3
    for name, p in early.items():
        assert torch.allclose(now[name], p, atol=1e-5), name


def test_a_discriminator_learns_to_tell_noise():
    torch.manual_seed(0)
    basis = torch.randn(6, 3)
    discriminator = NoiseDiscriminator(6, 6).train()
    optimiser = torch.optim.Adam(discriminator.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(0)

    def features() -> torch.Tensor:  # on a plane, which noise leaves
        return (torch.randn(4, 12, 12, 3) @ basis.T).movedim(-1, 1)

    discriminator.calibrate(features())
    for _ in range(400):
        loss = noise_loss(discriminator, features(), generator)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        h = discriminator.eval().project(features())
        lots, little = (discriminator.judge(h + s * torch.randn_like(h)).flatten() for s in SIGMAS)
    auc = (lots[:, None] > little).float().mean()
    assert auc > 0.75


def test_after_a_step_places_look_noisy_with_a_smaller_probability(ready):
    adapter, x = ready("nc-ttt").adapt("nc-ttt", lr=1e-3, steps=1), torch.randn(2, 3, 32, 32)
    adapter(x)  # one step; `noisy` then uses the same batch statistics

    def noisy() -> float:
        batchnorm.use(adapter.network, batchnorm.BATCH)
        with torch.no_grad():
            features = pyramid.encode_to(adapter.network, adapter.producer, x)
            return adapter.discriminator(features).sigmoid().mean().item()

    after = noisy()
    adapter.reset()
    assert after < noisy() - 1e-4
