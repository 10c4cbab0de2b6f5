import math

import pytest
import torch

from ttdg.adaptation import losses
from ttdg.adaptation.views import (
    SIX_VIEWS,
    SQUARE_VIEWS,
    average_over_views,
    min_max_scaled,
    photometric_view,
)
from ttdg.data.transforms import blur


@pytest.mark.parametrize("view", SQUARE_VIEWS, ids=str)
def test_views_are_turned_back_exactly(view):
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(view.inverse(view(x)), x)


def test_the_symmetries_of_the_square_are_eight_and_the_six_are_among_them():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert len({tuple(view(x).flatten().tolist()) for view in SQUARE_VIEWS}) == 8
    assert torch.equal(SIX_VIEWS[1](x), x.flip(-1))
    assert torch.equal(SIX_VIEWS[2](x), x.flip(-2))
    assert len(set(SIX_VIEWS)) == 6
    assert set(SIX_VIEWS) <= set(SQUARE_VIEWS)


def test_the_mean_over_views_of_a_pixelwise_network_is_its_own_answer():
    x = torch.randn(2, 3, 6, 9)
    for head in ("softmax", "sigmoid"):
        answer = average_over_views(lambda images: 2 * images, x, head)
        assert torch.allclose(
            losses.probabilities(answer, head), losses.probabilities(2 * x, head), atol=1e-6
        )


def test_other_lights_keep_the_range_and_the_place_and_the_original():
    x = torch.rand(4, 3, 16, 16) * 5 - 2
    before, y = x.clone(), photometric_view(x, torch.Generator().manual_seed(0))
    assert torch.equal(x, before)
    assert not torch.allclose(x, y, atol=0.1)
    for extreme in (torch.amin, torch.amax):
        assert torch.allclose(extreme(y, (1, 2, 3)), extreme(x, (1, 2, 3)), atol=1e-5)
    assert torch.equal(y, photometric_view(x, torch.Generator().manual_seed(0)))
    assert torch.equal(photometric_view(torch.ones(1, 1, 4, 4), torch.Generator()), torch.ones(1, 1, 4, 4))
    assert min_max_scaled(x).amin() == 0


@pytest.mark.parametrize(
    "draw", [0.1, 0.4, 0.6, 0.9], ids=["all", "all, weaker", "no noise, no blur", "none"]
)
@pytest.mark.parametrize("strong", [False, True], ids=["released noise", "strong noise"])
def test_a_view_by_hand_where_every_draw_is_the_same(draw, strong, monkeypatch):
    x = torch.rand(2, 3, 16, 16) * torch.tensor([5.0, 3.0, 1.0]).view(3, 1, 1) - 2
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, draw))
    sd = (0.05 * draw) ** 0.5 if strong else 0.05 * draw
    options = ("strong",) if strong else ()
    for ours, image, grain in zip(
        photometric_view(x, torch.Generator().manual_seed(0), *options), x, noise, strict=True
    ):
        y = (image - image.min()) / (image.max() - image.min())
        if draw < 0.75:
            y = y * (0.5 + draw)
            for channel in y:
                mean, low, high = channel.mean(), channel.min().item(), channel.max().item()
                channel.copy_((mean + (0.5 + draw) * (channel - mean)).clamp(low, high))
            low, high = y.min(), y.max()
            y = high - (high - low) * ((high - y) / (high - low)) ** (0.5 + 1.5 * draw)
        if draw < 0.5:
            y = blur((y + sd * grain)[None], torch.tensor([0.5 + draw]))[0]
        y = (y - y.min()) / (y.max() - y.min())
        assert torch.allclose(ours, image.min() + (image.max() - image.min()) * y, atol=1e-5)


def plateaus(count: int, factors: tuple[float, ...] = (1.0,)) -> torch.Tensor:
    """Images with five flat steps from 0 to 1, so wide that blur does not change their centres; all rows are equal."""
    steps = torch.linspace(0, 1, 5).repeat_interleave(21)
    return torch.tensor(factors)[:, None, None] * steps.expand(count, 1, 30, -1)


def middles(images: torch.Tensor) -> torch.Tensor:
    """Heights of the steps of each channel, scaled to the range of the channel."""
    x = images[..., 15, 10::21]
    return (x - x[..., :1]) / (x[..., -1:] - x[..., :1])


@pytest.mark.parametrize(
    ("options", "largest"), [((), 0.05), (("strong",), math.sqrt(0.05))], ids=["released", "strong"]
)
def test_the_strongest_noise_has_the_standard_deviation_that_is_drawn_or_by_name_its_square_root(
    options, largest, monkeypatch
):
    """Of ten draws only those of the noise take effect: 0 (it is applied) and 1 (the largest strength)."""
    draws = iter([*[1.0] * 6, 0.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, next(draws)))
    x = torch.full((1, 1, 50, 50), 0.5)
    x[..., 0, :], x[..., -1, :] = 0.0, 1.0
    y = photometric_view(x, torch.Generator().manual_seed(0), *options)[0, 0]
    grain = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))[0, 0]
    noisy = x[0, 0] + largest * grain
    assert torch.allclose(y, (noisy - noisy.min()) / (noisy.max() - noisy.min()), atol=1e-6)
    assert (noisy - x[0, 0]).std().item() == pytest.approx(largest, rel=0.05)


def test_half_of_the_images_get_noise():
    y = photometric_view(plateaus(300), torch.Generator().manual_seed(0))
    alike = torch.isclose(y, y[..., :1, :], atol=1e-4).flatten(1).all(1)
    assert alike.float().mean().item() == pytest.approx(0.5, abs=0.1)


def test_three_quarters_of_the_images_get_inverted_gamma_and_contrast_is_clipped_to_a_channels_range():
    """Brightness and contrast keep the relative height of the middle step; clipped contrast moves the others."""
    y = photometric_view(plateaus(600, (1.0, 0.5)), torch.Generator().manual_seed(0))
    quiet = torch.isclose(y, y[..., :1, :], atol=1e-4).flatten(1).all(1)
    steps = middles(y[quiet])
    straight = torch.isclose(steps[..., 2], torch.tensor(0.5), atol=1e-3).all(1)
    assert straight.float().mean().item() == pytest.approx(0.25, abs=0.08)
    brighter = y[quiet].amax((2, 3)).argmax(1)  # spans the range of the image, in which gamma acts
    bent = steps[torch.arange(len(steps)), brighter, 2][~straight]
    assert bent.min().item() == pytest.approx(1 - 0.5**0.5, abs=0.02)
    assert bent.max().item() == pytest.approx(1 - 0.5**2.0, abs=0.02)

    plain = steps[straight]
    assert torch.allclose(plain[:, 0], plain[:, 1], atol=1e-3)  # a darker channel is clipped as early
    assert ((plain[..., 1] > 0.124) & (plain[..., 1] < 0.251)).all()  # 0.5 − 1.5 · 0.25
    assert (plain[..., 1] < 0.24).float().mean().item() == pytest.approx(0.375, abs=0.12)
