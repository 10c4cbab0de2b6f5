"""A site is like home if the mean description of its images lies near that of a source site."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ttdg.adaptation.site_learning.home import LIKE_HOME, SAMPLING, SMALLEST, HomeStatistics, describe

SEEDS = st.integers(0, 999)


def a_site(count: int, seed: int, light: float = 0.5, channels: int = 3) -> torch.Tensor:
    """Images with a disc; brightness and contrast vary between the images."""
    generator = torch.Generator().manual_seed(seed)
    brightness, contrast = (0.1 * torch.randn(count, 1, 1, 1, generator=generator) for _ in range(2))
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    disc = (y**2 + x**2 < 0.5).float()
    noise = 0.05 * torch.randn(count, channels, 16, 16, generator=generator)
    return (light + brightness + (0.2 + contrast) * disc + noise).clamp(0, 1)


def by_numpy(image: np.ndarray) -> np.ndarray:
    """The description of one image of three channels (c h w)."""
    grey = image.mean(0)
    h, w = grey.shape
    dx = [abs(grey[i, j + 1] - grey[i, j]) for i in range(h) for j in range(w - 1)]
    dy = [abs(grey[i + 1, j] - grey[i, j]) for i in range(h - 1) for j in range(w)]
    curvature = [
        abs(grey[i, j - 1] + grey[i, j + 1] + grey[i - 1, j] + grey[i + 1, j] - 4 * grey[i, j])
        for i in range(1, h - 1)
        for j in range(1, w - 1)
    ]
    texture = [np.log(np.mean(x) + 1e-3) for x in (dx, dy, curvature)]
    return np.array([*image.mean((1, 2)), *image.std((1, 2)), *texture])


@given(seed=SEEDS, h=st.integers(3, 7), w=st.integers(3, 7))
@settings(max_examples=25, deadline=None)
def test_a_description_holds_means_deviations_and_the_logarithm_of_gradients_and_curvature(seed, h, w):
    images = torch.rand(2, 3, h, w, generator=torch.Generator().manual_seed(seed))
    expected = [by_numpy(image.double().numpy()) for image in images]
    assert np.allclose(describe(images).numpy(), expected, atol=1e-4)


@given(seed=SEEDS, count=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_statistics_are_mean_and_deviation_over_the_images_of_each_site(seed, count):
    sites = [describe(a_site(count, seed)), describe(a_site(count + 2, seed + 1, light=0.3))]
    home = HomeStatistics.of(iter(sites))
    for row, site in enumerate(sites):
        values = site.double().numpy()
        assert np.allclose(home.mean[row].numpy(), values.mean(0), atol=1e-5)
        assert np.allclose(home.deviation[row].numpy(), np.maximum(values.std(0), SMALLEST), atol=1e-4)


@pytest.mark.parametrize("count", [8, 24, 48])
def test_other_images_of_a_source_site_are_like_home_and_darker_images_are_not(count):
    """The features of these images vary together, which is the worst case: about 1 site in 100 is mistaken."""
    home = HomeStatistics.of([describe(a_site(128, 5000)), describe(a_site(128, 5001, light=0.9))])
    same, darker = (
        [home.like_home(describe(a_site(count, seed, light)).mean(0), count) for seed in range(40)]
        for light in (0.5, 0.1)
    )
    assert sum(same) >= 36
    assert not any(darker)


@pytest.mark.parametrize("change", ["light", "contrast", "sharpness", "colour"])
def test_a_change_of_the_camera_is_noticed(change):
    home, images = HomeStatistics.of([describe(a_site(64, 0))]), a_site(32, 1)
    assert home.like_home(describe(images).mean(0), 32)
    changed = {
        "light": lambda x: x + 0.3,
        "contrast": lambda x: 0.5 + 3 * (x - 0.5),
        "sharpness": lambda x: F.avg_pool2d(x, 5, 1, 2, count_include_pad=False),
        "colour": lambda x: x * torch.tensor([1.0, 0.5, 0.3]).view(3, 1, 1),
    }[change](images)
    assert not home.like_home(describe(changed.clamp(0, 1)).mean(0), 32)


@given(squared=st.floats(0, 4), images=st.integers(1, 1000), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_few_images_widen_the_limit(squared, images, seed):
    """The limit on the squared distance is a constant, and grows as images become few."""
    limit = LIKE_HOME + (SAMPLING + 1) / images
    assume(abs(squared - limit) > 1e-3)
    generator = torch.Generator().manual_seed(seed)
    mean, deviation = torch.zeros(2, 9), torch.rand(2, 9, generator=generator) + 0.5
    mean[1] = 1000  # a far site does not matter
    signs = 2.0 * torch.randint(2, (9,), generator=generator) - 1
    there = mean[0] + squared**0.5 * signs * deviation[0]
    home = HomeStatistics(mean, deviation)
    assert home.like_home(there, images) is (squared < limit)
    assert home.distance(there, images).item() == pytest.approx(squared - 1 / images, abs=1e-4)


def test_the_nearest_source_site_decides():
    sites = [describe(a_site(64, seed, light)) for seed, light in enumerate((0.2, 0.5, 0.8))]
    home = HomeStatistics.of(sites)
    assert all(home.like_home(site.mean(0), 64) for site in sites)
    assert not HomeStatistics.of(sites[:2]).like_home(sites[2].mean(0), 64)


def test_a_site_without_images_is_like_home():
    home = HomeStatistics.of([describe(a_site(4, 0))])
    assert home.like_home(torch.full((9,), 1e6), 0)
    assert not home.like_home(torch.full((9,), 1e6), 1)


@given(seed=SEEDS, channels=st.sampled_from([1, 2, 4]))
@settings(max_examples=25, deadline=None)
def test_images_of_other_channels_are_described_by_their_mean_channel(seed, channels):
    images = a_site(3, seed, channels=channels)
    grey = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    assert torch.allclose(describe(images), describe(grey), atol=1e-6)


def test_a_constant_image_has_a_finite_description():
    assert describe(torch.zeros(2, 3, 8, 8)).isfinite().all()


def test_an_image_that_is_not_finite_has_a_description_that_is_not_finite():
    images = a_site(2, 0)
    images[0, 1, 3, 3] = torch.nan
    assert not describe(images)[0].isfinite().all()
    assert describe(images)[1].isfinite().all()
