"""The exchange of low-frequency Fourier amplitudes between images of different sites."""

import pytest
import torch

from ttdg.data.augmentation import FOURIER_WINDOW, FourierParameters, draw_fourier
from ttdg.data.transforms import exchange_amplitude

SIDE = 33


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exchange(weight: float, window: float, n: int = 4, side: tuple[int, int] = (SIDE, SIDE + 1)):
    """Images away from 0 and 1, so that clamping changes nothing; partners differ in brightness and detail."""
    images, partners = (
        low + 0.1 * torch.rand(n, 3, *side, generator=generator(seed), dtype=torch.float64)
        for low, seed in ((0.3, 0), (0.6, 1))
    )
    values = (torch.full((n,), x, dtype=torch.float64) for x in (weight, window))
    return images, partners, exchange_amplitude(images, partners, FourierParameters(*values, torch.arange(n)))


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_amplitudes_are_interpolated_inside_the_window_only_and_phases_stay(weight: float):
    window = 0.1
    images, partners, changed = exchange(weight, window)
    own, other, new = (torch.fft.fft2(x) for x in (images, partners, changed))
    y, x = (torch.fft.fftfreq(n).abs() for n in images.shape[-2:])
    inside = (y[:, None] <= window) & (x[None] <= window)
    assert inside.sum() == (2 * 3 + 1) ** 2
    expected = torch.where(inside, (1 - weight) * own.abs() + weight * other.abs(), own.abs())
    torch.testing.assert_close(new.abs(), expected)
    torch.testing.assert_close(new / new.abs(), own / own.abs(), atol=1e-6, rtol=0)


def test_without_weight_the_image_is_returned_exactly_and_window_0_changes_the_mean_only():
    images, _, same = exchange(0.0, 0.1)
    assert torch.equal(same, images)
    images, partners, changed = exchange(1.0, 0.0)
    torch.testing.assert_close(
        changed - images, (partners - images).mean((2, 3), keepdim=True).expand_as(images)
    )


def test_exchanged_images_stay_in_range_and_black_images_stay_finite():
    images = torch.zeros(2, 3, SIDE, SIDE)
    ones = FourierParameters(torch.ones(2), torch.full((2,), 0.05), torch.tensor([1, 0]))
    for partners in (torch.zeros_like(images), torch.rand(2, 3, SIDE, SIDE, generator=generator())):
        changed = exchange_amplitude(images, partners, ones)
        assert changed.isfinite().all()
        assert changed.min() >= 0
        assert changed.max() <= 1


def test_partners_are_of_another_site_if_there_is_one():
    site = torch.tensor([0] * 6 + [1] * 3 + [2])
    drawn = [draw_fourier(site, 0.5, generator(seed)) for seed in range(200)]
    assert all((site[p.partner] != site).all() for p in drawn)
    assert torch.bincount(torch.stack([p.partner[0] for p in drawn]), minlength=10)[6:].min() > 20
    alone = draw_fourier(torch.zeros(5, dtype=torch.long), 1.0, generator())
    assert (alone.partner != torch.arange(5)).all()
    assert draw_fourier(torch.zeros(1, dtype=torch.long), 1.0, generator()).partner.tolist() == [0]


def test_images_are_exchanged_with_the_given_probability():
    drawn = draw_fourier(torch.arange(2000) % 2, 0.3, generator())
    assert (drawn.weight > 0).float().mean() == pytest.approx(0.3, abs=0.03)
    assert 0.045 < drawn.window.max() <= FOURIER_WINDOW
    assert len(drawn[3:7].partner) == 4
