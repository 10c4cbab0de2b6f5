"""VPTTA against FFTs and plain Adam; its schedule, memory and prompts."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ttdg.adaptation import adapt
from ttdg.adaptation.fourier_prompt import fourier_window
from ttdg.adaptation.memory import Memory
from ttdg.adaptation.methods.vptta import warm_up_weight
from ttdg.networks.batchnorm import batched, grouped

adapt = partial(adapt, activation="softmax")


def a_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    network[1].running_mean.normal_()
    network[1].running_var.uniform_(0.5, 2)
    return network.eval()


def by_fft(images: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    """The published form: amplitude and phase, shift, multiply the window, shift back, inverse FFT, real part."""
    spectrum = torch.fft.fft2(images)
    amplitude, phase = torch.fft.fftshift(spectrum.abs(), (-2, -1)), spectrum.angle()
    k = prompt.shape[-1]
    y, x = ((side - k) // 2 for side in images.shape[-2:])
    whole = torch.ones_like(amplitude)
    whole[..., y : y + k, x : x + k] = prompt
    amplitude = torch.fft.ifftshift(amplitude * whole, (-2, -1))
    return torch.fft.ifft2(torch.polar(amplitude, phase)).real


def test_steps_are_adams_on_the_misfit_of_statistics_under_the_warmed_mixture():
    """Two images in a row: each starts from a prompt of 1; Adam's moments and the image count are kept."""
    network, lr = a_network(), 0.05
    conv, norm, _, head = network
    adapter = adapt(network, "vptta", lr=lr, size=0.1)
    prompt = nn.Parameter(torch.ones(1, 3, 3, 3))
    adam = torch.optim.Adam([prompt], lr=lr, betas=(0.9, 0.99))

    def forward(x, lam):
        h = conv(by_fft(x, prompt))
        batch_mean, batch_var = h.detach().mean((0, 2, 3)), h.detach().var((0, 2, 3))
        mean = lam * batch_mean + (1 - lam) * norm.running_mean
        var = lam * batch_var + (1 - lam) * norm.running_var
        own_mean, own_std = h.mean((2, 3)), h.std((2, 3))
        loss = (mean - own_mean).abs().mean() + (var.sqrt() - own_std).abs().mean()
        h = (h - mean[:, None, None]) / (var[:, None, None] + norm.eps).sqrt()
        return loss, head((h * norm.weight[:, None, None] + norm.bias[:, None, None]).relu())

    for seen in (1, 2):
        x, lam = torch.randn(1, 3, 32, 32) * 2 + seen, 1 / (math.sqrt(seen) / 5 + 1)
        answer = adapter(x)
        with torch.no_grad():
            prompt.fill_(1.0)
        (prompt.grad,) = torch.autograd.grad(forward(x, lam)[0], prompt)
        adam.step()
        with torch.no_grad():
            assert torch.allclose(answer, forward(x, lam)[1], atol=1e-5)
        assert torch.allclose(adapter.prompt, prompt, atol=1e-5)
        assert (prompt - 1).abs().max() > 0.02  # the step has changed the prompt


def test_a_prompt_starts_as_the_mean_of_its_neighbours_weighted_by_the_cosine_of_their_keys():
    adapter = adapt(a_network(), "vptta", neighbours=2, size=0.1, lr=0.05)
    for _ in range(3):
        adapter(torch.randn(1, 3, 32, 32) + 1)
    keys, prompts = adapter.memory.columns
    new = keys[:1] * torch.rand(1, 3, 3, 3)
    cosines = torch.nn.functional.cosine_similarity(new.flatten(1), keys.flatten(1))
    best = cosines.argsort(descending=True)[:2]
    weights = (cosines[best] / 0.2).softmax(0)
    expected = (weights[:, None, None, None] * prompts[best]).sum(0)
    assert torch.allclose(adapter._initial_prompts(new)[0], expected, atol=1e-6)


def test_after_the_stream_an_image_is_answered_with_the_memorys_prompt_and_the_last_mixture():
    adapter, image = adapt(a_network(), "vptta", neighbours=1, size=0.1, lr=0.05), torch.randn(1, 3, 32, 32)
    for other in (image, torch.randn(3, 3, 32, 32)):
        adapter(other)
    before = adapter.seen, len(adapter.memory), adapter.prompt.clone()
    answer = adapter.predict_frozen(image)
    view = fourier_window(32, 32, 3, image.device)
    prompted = view.apply_prompt(image, view.coefficients(image), adapter.memory.columns[1][:1])
    assert torch.allclose(
        answer, adapt(a_network(), "alpha-bn", alpha=warm_up_weight(4, 5.0))(prompted), atol=1e-5
    )
    assert before[:2] == (adapter.seen, len(adapter.memory))
    assert torch.equal(before[2], adapter.prompt)


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_through_the_gpu_program_are_the_steps_without(batch, monkeypatch):
    """The plain form of the GPU program replaces it; gradient and prompt must have the same memory layout."""
    images, found = torch.randn(2, batch, 3, 32, 32), []
    for program in (lambda *_: None, lambda *_: grouped._normalise):
        monkeypatch.setattr(batched, "fused_kernel_for", program)
        adapter = adapt(a_network(), "vptta", size=0.1, lr=0.05)
        answers = [adapter(x) for x in images]
        assert adapter.prompt.grad.stride() == adapter.prompt.stride()
        found.append((*answers, adapter.prompt.grad, adapter.loss))
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-5)


@given(st.integers(5, 40), st.integers(5, 40), st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_a_prompt_on_the_window_alone_is_the_published_fft(height, width, k):
    torch.manual_seed(height * width)
    images, prompt = torch.randn(2, 3, height, width), torch.randn(2, 3, k, k)
    view = fourier_window(height, width, k, images.device)
    low = view.coefficients(images)
    assert torch.allclose(view.apply_prompt(images, low, prompt), by_fft(images, prompt), atol=2e-5)


def test_the_unit_prompt_is_the_identity_to_the_bit():
    images = torch.randn(2, 1, 31, 64)
    view = fourier_window(31, 64, 3, images.device)
    assert torch.equal(view.apply_prompt(images, view.coefficients(images), torch.ones(2, 1, 3, 3)), images)


def test_the_key_is_the_window_of_the_shifted_amplitude():
    images, k = torch.randn(1, 3, 512, 352), 5
    amplitude = torch.fft.fftshift(torch.fft.fft2(images).abs(), (-2, -1))
    wanted = amplitude[..., 253:258, 173:178]
    assert torch.allclose(
        fourier_window(512, 352, k, images.device).coefficients(images).abs(), wanted, rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize(("seen", "value"), [(1, 0.8333), (25, 0.5), (100, 0.3333), (400, 0.2)])
def test_the_weight_of_the_test_statistics_falls_as_published(seen, value):
    assert warm_up_weight(seen, 5.0) == pytest.approx(value, abs=1e-4)


def test_every_image_counts_once_for_the_weight():
    adapter = adapt(a_network(), "vptta", steps=3)
    adapter(torch.randn(4, 3, 32, 32))
    adapter(torch.randn(1, 3, 32, 32))
    assert adapter.seen == 5
    assert adapter.mode.rho == warm_up_weight(5, 5.0)


def test_with_rate_zero_it_is_the_network_with_the_warmed_mixture():
    network, images = a_network(), torch.randn(2, 3, 32, 32)
    adapter = adapt(network, "vptta", lr=0.0)
    for seen in (2, 4, 6):
        mixed = adapt(network, "alpha-bn", alpha=warm_up_weight(seen, 5.0))
        assert torch.allclose(adapter(images), mixed(images), atol=1e-6)


def test_a_batch_has_one_prompt_an_image():
    adapter = adapt(a_network(), "vptta", lr=0.05, size=0.1)
    adapter(torch.randn(3, 3, 32, 32))
    assert adapter.prompt.shape == (3, 3, 3, 3)
    assert len({tuple(p.flatten().tolist()) for p in adapter.prompt}) == 3


def test_the_memory_is_first_in_first_out_and_never_larger_than_its_size():
    memory = Memory(4)
    for value in range(7):
        memory.push(torch.full((1, 2), float(value)), torch.full((1, 1), float(value)))
    assert len(memory) == 4
    assert memory.columns[1].flatten().tolist() == [3, 4, 5, 6]
    memory.push(torch.ones(1, 5), torch.ones(1, 1))
    assert len(memory) == 1  # rows of another shape begin anew
    adapter = adapt(a_network(), "vptta", capacity=6)
    for _ in range(5):
        adapter(torch.randn(2, 3, 32, 32))
    assert len(adapter.memory) == 6


def test_an_image_seen_before_starts_from_its_own_prompt():
    adapter = adapt(a_network(), "vptta", neighbours=1, size=0.1, lr=0.05)
    image = torch.randn(1, 3, 32, 32)
    for other in (image, torch.randn(1, 3, 32, 32)):
        adapter(other)
    stored = adapter.memory.columns[1][0].clone()
    adapter._start_prompts(adapter.memory.columns[0][:1])
    assert torch.allclose(adapter.prompt[0], stored)


def test_before_the_memory_is_warm_a_prompt_starts_at_one():
    adapter = adapt(a_network(), "vptta", neighbours=3)
    for _ in range(2):
        adapter(torch.randn(1, 3, 32, 32))
    adapter._start_prompts(adapter.memory.columns[0][:1])
    assert (adapter.prompt == 1).all()


def test_more_steps_on_one_image_bring_the_statistics_closer():
    image, losses = torch.randn(1, 3, 32, 32), []
    for steps in (1, 20):
        adapter = adapt(a_network(), "vptta", steps=steps, size=0.1, warm=0.1)  # statistics near the source's
        adapter(image)
        losses.append(adapter.loss.item())
    assert losses[1] < losses[0] - 1e-3


def test_no_weight_and_no_buffer_ever_moves():
    network = a_network()
    adapter = adapt(network, "vptta", lr=0.1)
    for _ in range(3):
        adapter(torch.randn(2, 3, 32, 32))
    assert all(torch.equal(v, network.state_dict()[k]) for k, v in adapter.network.state_dict().items())
