import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.source_free.fundus_views import fundus_strong_view


def views(count, salt="white", seed=0, height=64, width=64, value=0.3):
    images = torch.full((count, 3, height, width), value)
    return fundus_strong_view(images, torch.Generator().manual_seed(seed), salt)


def changed_shares(count=400, **options):
    """Shares of images with white pixels, with black pixels, with another grey level and with a rectangle."""
    made = views(count, **options)
    flat = made.flatten(2)
    return made, (flat == 1).any(2).any(1), (flat == 0).any(2).any(1)


def test_a_quarter_of_the_images_has_salt_and_another_quarter_pepper():
    _, salt, pepper = changed_shares()
    assert salt.float().mean() == pytest.approx(0.25, abs=0.07)
    assert pepper.float().mean() == pytest.approx(0.25, abs=0.07)
    assert not (salt & pepper).any()


def test_noise_hits_as_many_pixels_as_published_and_all_channels_of_each():
    made, salt, pepper = changed_shares()
    hits = (made == 1).flatten(2).sum(2)
    assert torch.equal(hits[:, 0], hits[:, 2])
    few, many = (math.ceil(0.004 * 64 * 64 * 3 * share) for share in (0.2, 0.8))
    assert 0.8 * few < hits[salt].float().mean() <= few
    assert 0.8 * many < (made == 0).flatten(2).sum(2)[pepper].float().mean() <= many


def test_published_salt_is_almost_black():
    assert views(100, "black").max() < 1
    assert (views(100, "black", value=0.9) < 0.01).any()


def test_rectangles_are_wider_than_high_and_cover_two_to_six_percent():
    made = views(300, value=0.0)[:, 0]  # gamma and pepper leave black black; salt is single pixels
    sizes = []
    for image in made:
        values, counts = image[(image > 0) & (image < 1)].unique(return_counts=True)
        if len(values) and counts.max() > 20:
            rows, columns = (image == values[counts.argmax()]).nonzero().T
            sizes.append((int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1))
    assert len(sizes) / 300 == pytest.approx(0.5, abs=0.1)
    assert all(height < width for height, width in sizes)
    shares = [height * width / 64**2 for height, width in sizes]
    assert 0.015 < min(shares) < max(shares) <= 0.06


def test_gamma_brightens_more_often_than_it_darkens():
    """1/g is between 1/3.5 and 2; a grey of 0.3 becomes at most 0.3^(1/3.5)."""
    middle = views(400).flatten(1).median(1).values
    assert middle.max() <= 0.3 ** (1 / 3.5) + 1e-4
    assert middle.min() >= 0.3**2 - 1e-4
    assert (middle > 0.301).sum() > (middle < 0.299).sum()


@given(
    channels=st.integers(1, 4), height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 99)
)
@settings(max_examples=30, deadline=None)
def test_images_of_any_shape_stay_in_range_and_depend_on_the_seed_alone(channels, height, width, seed):
    images = torch.rand(3, channels, height, width, generator=torch.Generator().manual_seed(seed))
    first, again = (fundus_strong_view(images, torch.Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1
