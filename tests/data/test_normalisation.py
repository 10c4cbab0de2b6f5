"""Normalisation by ImageNet's statistics and by an image's own range."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.data import normalise


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


images = st.integers(0, 2**32).map(lambda seed: torch.rand(3, 3, 5, 6, generator=generator(seed)))


@settings(max_examples=30, deadline=None)
@given(images, st.floats(0.05, 1), st.floats(0, 1))
def test_minmax_spans_the_range_and_undoes_brightness_and_contrast(
    batch: torch.Tensor, scale: float, shift: float
):
    normal = normalise(batch, "minmax")
    torch.testing.assert_close(normal.amin((1, 2, 3)), torch.zeros(3))
    torch.testing.assert_close(normal.amax((1, 2, 3)), torch.ones(3))
    torch.testing.assert_close(normalise(scale * batch + shift, "minmax"), normal, atol=1e-4, rtol=0)


def test_minmax_takes_the_channels_together():
    """Channels are not normalised separately: a red image stays red."""
    tint = torch.tensor([0.6, 0.3, 0.1])[:, None, None]
    red = tint + 0.2 * torch.rand(2, 3, 8, 8, generator=generator())
    expected = [(image - image.min()) / (image.max() - image.min()) for image in red.numpy()]
    np.testing.assert_allclose(normalise(red, "minmax").numpy(), np.stack(expected), atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_a_constant_image_becomes_zeros(value: float):
    assert not normalise(torch.full((2, 3, 4, 4), value), "minmax").any()


@settings(max_examples=30, deadline=None)
@given(images, st.floats(0.2, 1), st.floats(0, 1))
def test_zscore_gives_mean_0_and_variance_1_and_undoes_brightness_and_contrast(batch, scale, shift):
    normal = normalise(batch, "zscore")
    np.testing.assert_allclose(normal.numpy().mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(normal.numpy().var((1, 2, 3)), 1, atol=1e-4)
    torch.testing.assert_close(normalise(scale * batch + shift, "zscore"), normal, atol=1e-3, rtol=0)
    assert not normalise(torch.full((1, 3, 4, 4), scale), "zscore").abs().gt(1e-4).any()


def test_imagenet_statistics_are_those_of_imagenet():
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    at_mean = mean[None, :, None, None].expand(1, 3, 2, 2)
    torch.testing.assert_close(normalise(at_mean, "imagenet"), torch.zeros(1, 3, 2, 2))
    above = (mean + std)[None, :, None, None].expand(1, 3, 2, 2)
    torch.testing.assert_close(normalise(above, "imagenet"), torch.ones(1, 3, 2, 2))


@pytest.mark.parametrize("how", ["minmax", "imagenet"])
def test_normalising_leaves_its_argument_alone_and_gradients_flow(how):
    batch = torch.rand(2, 3, 4, 4, generator=generator(), dtype=torch.float64, requires_grad=True)
    before = batch.detach().clone()
    normalise(batch, how).square().sum().backward()
    assert torch.equal(batch, before)
    assert batch.grad.abs().sum() > 0
