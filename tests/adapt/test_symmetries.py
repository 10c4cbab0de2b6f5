import pytest
import torch

from ttdg.adapt import entropy
from ttdg.adapt.symmetries import SIX, SQUARE, averaged, recoloured, unit


@pytest.mark.parametrize("view", SQUARE, ids=str)
def test_views_are_turned_back_exactly(view):
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(view.back(view(x)), x)


def test_the_symmetries_of_the_square_are_eight_and_the_six_are_among_them():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert len({tuple(view(x).flatten().tolist()) for view in SQUARE}) == 8
    assert torch.equal(SIX[1](x), x.flip(-1))
    assert torch.equal(SIX[2](x), x.flip(-2))
    assert len(set(SIX)) == 6
    assert set(SIX) <= set(SQUARE)


def test_the_mean_over_views_of_a_pixelwise_network_is_its_own_answer():
    x = torch.randn(2, 3, 6, 9)
    for head in ("softmax", "sigmoid"):
        answer = averaged(lambda images: 2 * images, x, head)
        assert torch.allclose(
            entropy.probabilities(answer, head), entropy.probabilities(2 * x, head), atol=1e-6
        )


def test_other_lights_keep_the_range_and_the_place_and_the_original():
    x = torch.rand(4, 3, 16, 16) * 5 - 2
    before, y = x.clone(), recoloured(x, torch.Generator().manual_seed(0))
    assert torch.equal(x, before)
    assert not torch.allclose(x, y, atol=0.1)
    for extreme in (torch.amin, torch.amax):
        assert torch.allclose(extreme(y, (1, 2, 3)), extreme(x, (1, 2, 3)), atol=1e-5)
    assert torch.equal(y, recoloured(x, torch.Generator().manual_seed(0)))
    assert torch.equal(recoloured(torch.ones(1, 1, 4, 4), torch.Generator()), torch.ones(1, 1, 4, 4))
    assert unit(x).amin() == 0
