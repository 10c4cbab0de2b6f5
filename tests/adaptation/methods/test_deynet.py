"""DeY-Net: blind-spot corruption, the denoising loss, and which values change."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.methods.deynet import METHOD
from ttdg.networks.heads.denoiser import CORRUPTED_SHARE, NEIGHBOUR_RADIUS, Denoiser, corrupt, denoising_loss
from ttdg.types import Part


def some_images(seed: int = 1, side: int = 32) -> torch.Tensor:
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 10**6), st.integers(6, 30), st.integers(6, 30))
@settings(max_examples=15, deadline=None)
def test_a_tenth_of_the_pixels_at_most_is_replaced_by_a_neighbour_of_all_channels(seed, h, w):
    images = (
        torch.arange(2.0 * h * w).view(2, 1, h, w).repeat(1, 3, 1, 1)
    )  # the value of a pixel is its index
    corrupted, where = corrupt(images, torch.Generator().manual_seed(seed))
    assert 0 < where.float().mean() <= max(CORRUPTED_SHARE, 1 / (h * w)) + 1e-6
    assert torch.equal(corrupted.masked_fill(where, 0), images.masked_fill(where, 0))
    assert torch.equal(corrupted[:, 0], corrupted[:, 2])
    taken, own = (x[:, 0].long() % (h * w) for x in (corrupted, images))
    for side, a, b in ((h, taken // w, own // w), (w, taken % w, own % w)):
        apart = (a - b).abs()
        assert torch.minimum(apart, side - apart).max() <= NEIGHBOUR_RADIUS


def test_the_loss_depends_on_the_blind_spots_only():
    target, where = some_images(), torch.zeros(2, 1, 32, 32, dtype=torch.bool)
    where[:, :, 3, 4] = True
    denoised = target.clone().requires_grad_(True)
    denoising_loss(denoised + 0.5, target, where).backward()
    assert torch.equal(denoised.grad != 0, where.expand_as(target))
    assert denoising_loss(target + 0.5, target, where).item() == pytest.approx(0.5 / 32**2)


def test_convolutions_never_move_and_the_segmentation_decoder_s_affine_neither(ready):
    source = ready("deynet")
    adapter = source.adapt("deynet", lr=1e-2)
    adapter(some_images(side=64))  # smaller images give the deep layers too few values for statistics
    before, now = source.network.state_dict(), adapter.network.state_dict()
    moved = {name for name in before if not torch.equal(before[name], now[name])}
    assert not any(before[name].ndim == 4 for name in moved)
    assert {n for n in moved if "decoder" in n} == {
        n for n in before if "decoder" in n and n.endswith(("running_mean", "running_var"))
    }


def test_with_a_rate_of_zero_only_the_running_statistics_change(ready):
    source = ready("deynet")
    adapter = source.adapt("deynet", lr=0.0)
    adapter(some_images())
    before, now = source.network.state_dict(), adapter.network.state_dict()
    moved = {name.rsplit(".")[-1] for name in before if not torch.equal(before[name], now[name])}
    assert moved == {"running_mean", "running_var"}


def test_the_answer_is_the_mean_probability_of_corrupted_copies(ready):
    source = ready("deynet")
    adapter = source.adapt("deynet")
    answer = adapter(some_images()).softmax(1)
    generator = torch.Generator().manual_seed(0)
    corrupt(some_images(), generator)  # the corruption of the update
    with torch.no_grad():
        copies = [adapter.network(corrupt(some_images(), generator)[0]).softmax(1) for _ in range(2)]
    assert torch.allclose(answer, (copies[0] + copies[1]) / 2, atol=1e-5)


def test_the_denoiser_is_trained_too_and_reset_restores_it(ready):
    source = ready("deynet")
    adapter = source.adapt("deynet", lr=5e-2)
    first = adapter(some_images())

    def loss() -> float:
        adapter.generator.manual_seed(5)  # the same blind spots
        with torch.no_grad():
            return adapter.objective(some_images()).item()

    before = loss()
    for _ in range(12):
        adapter(some_images())
    assert loss() < 0.98 * before
    adapter.reset()
    part = source.parts["deynet"].tensors
    assert all(torch.equal(value, part[name]) for name, value in adapter.denoiser.state_dict().items())
    assert torch.equal(adapter(some_images()), first)


def test_the_objective_is_the_distance_of_the_denoised_image_to_the_image_before_normalisation(ready):
    source = ready("deynet")
    part = source.parts["deynet"]
    part = Part(part.tensors, {**part.settings, "mean": [0.4] * 3, "std": [0.2] * 3})
    adapter = type(source)(source.network, {"deynet": part}).adapt("deynet")
    images = (some_images(side=64) - 0.4) / 0.2
    with torch.no_grad():
        found = adapter.objective(images).item()
        corrupted, where = corrupt(images, torch.Generator().manual_seed(0))
        denoised = Denoiser.from_part(part, torch.device("cpu")).train()(
            source.network.encode(corrupted), images
        )
    expected = ((denoised - some_images(side=64)) * where).abs().mean().item()
    assert found == pytest.approx(expected, rel=1e-4)
    assert 0 < found < 0.1


def test_adam_is_the_published_one(ready):
    (group,) = ready("deynet").adapt("deynet").descent.optimiser.param_groups
    assert (group["lr"], group["betas"]) == (1e-6, (0.9, 0.99))


def test_a_rate_of_zero_is_not_in_the_tuning_grid():
    assert METHOD.grid["lr"] == (1e-6, 1e-4)


def state(adapter) -> list[torch.Tensor]:
    both = (adapter.network, adapter.denoiser)
    return [value.clone() for module in both for value in module.state_dict().values()]


@pytest.mark.parametrize("copies", [0, 2])
def test_a_frozen_answer_is_of_corrupted_copies_and_takes_no_step(ready, copies):
    adapter = ready("deynet").adapt("deynet", lr=1e-2, copies=copies)
    adapter(some_images())
    before = state(adapter)
    adapter.generator.manual_seed(7)
    answer = adapter.predict_frozen(some_images(2)).softmax(1)
    assert all(torch.equal(a, b) for a, b in zip(state(adapter), before, strict=True))
    generator = torch.Generator().manual_seed(7)
    seen = [corrupt(some_images(2), generator)[0] for _ in range(copies)] or [some_images(2)]
    with torch.no_grad():
        expected = torch.stack([adapter.network(x).softmax(1) for x in seen]).mean(0)
    assert torch.allclose(answer, expected, atol=1e-5)


def test_a_batch_without_a_finite_image_changes_nothing(ready):
    bad = some_images(5)
    bad[:, 0, 3, 4] = float("nan")
    disturbed, calm = (ready("deynet").adapt("deynet", lr=1e-2) for _ in range(2))
    disturbed(some_images(1))
    calm(some_images(1))
    disturbed(bad)
    assert all(torch.equal(a, b) for a, b in zip(state(disturbed), state(calm), strict=True))
    assert torch.equal(disturbed(some_images(2)), calm(some_images(2)))


def test_a_batch_with_a_finite_image_is_learnt_from(ready):
    adapter, some = ready("deynet").adapt("deynet", lr=1e-2), some_images()
    before = state(adapter)
    some[0] = float("inf")
    adapter(some)
    assert not all(torch.equal(a, b) for a, b in zip(state(adapter), before, strict=True))
