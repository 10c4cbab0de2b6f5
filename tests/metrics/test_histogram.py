import numpy as np
import pytest
import torch

from ttdg.metrics.histogram import HALF, histogram


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_probability_of_exactly_a_threshold_reaches_it_and_the_next_smaller_number_does_not(dtype):
    thresholds = np.append(np.arange(1, 256) / 255, 0.5).astype(dtype)
    bins = np.append(2 * np.arange(1, 256), HALF)
    for values, expected in ((thresholds, bins), (np.nextafter(thresholds, dtype(0)), bins - 1)):
        maps = torch.from_numpy(values)[:, None, None, None]
        counts = histogram(maps, torch.zeros(maps.shape, dtype=torch.bool))
        assert np.array_equal(counts[:, 0, 0].argmax(1), expected)


def test_every_pixel_is_counted_once_under_its_class(draw_maps):
    for seed in range(5):
        probabilities, truth = draw_maps(seed)
        counts = histogram(probabilities, truth).sum(-1)
        assert torch.equal(counts[..., 1], truth.sum((2, 3)))
        assert torch.equal(counts[..., 0], (~truth).sum((2, 3)))


def test_the_histogram_is_numpys():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(3, 2, 9, 31, generator=generator, dtype=torch.float64)
    truth = torch.rand(3, 2, 9, 31, generator=generator) > 0.5
    counts = histogram(probabilities, truth)
    edges = np.append(np.arange(511) / 510, 2)
    for image, region in np.ndindex(3, 2):
        values = probabilities[image, region][truth[image, region]].numpy()
        assert np.array_equal(counts[image, region, 1], np.histogram(values, edges)[0])


def test_many_small_masks_are_counted_as_one_by_one():
    """The counters of 40 masks need more than 16 bits."""
    probabilities = torch.rand(40, 1, 5, 6, generator=torch.Generator().manual_seed(0))
    truth = probabilities > 0.7
    singly = torch.cat([histogram(p[None], g[None]) for p, g in zip(probabilities, truth, strict=True)])
    assert torch.equal(histogram(probabilities, truth), singly)


def test_half_precision_maps_and_views_are_counted_like_their_float32_copies():
    maps = torch.rand(2, 8, 8, 3, generator=torch.Generator().manual_seed(0)).half().permute(0, 3, 1, 2)
    truth = (maps > 0.5).transpose(2, 3)
    assert torch.equal(histogram(maps, truth), histogram(maps.float().contiguous(), truth.contiguous()))


def test_not_a_number_counts_as_background():
    maps = torch.full((1, 1, 4, 4), torch.nan)
    assert int(histogram(maps, torch.zeros(1, 1, 4, 4, dtype=torch.bool))[0, 0, 0, 0]) == 16
