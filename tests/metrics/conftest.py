from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Maps = Callable[[int], tuple[Tensor, Tensor]]


@pytest.fixture(scope="session")
def disc_pair() -> tuple[Tensor, Tensor, Tensor]:
    """The prediction, the truth and the soft prediction of the published values, each (1, 1, 64, 64)."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    truth = (y - 30) ** 2 + (x - 34) ** 2 < 225
    prediction = (y - 32) ** 2 + (x - 31) ** 2 < 169
    soft = torch.sigmoid((13 - ((y - 32) ** 2 + (x - 31) ** 2).sqrt().double()) / 2)
    return prediction[None, None], truth[None, None], soft[None, None]


@pytest.fixture(scope="session")
def draw_maps() -> Maps:
    return random_maps


def random_maps(seed: int) -> tuple[Tensor, Tensor]:
    """Six images of two regions, of random small size: soft blobs, noise, and empty, full and tiny truths."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    h, w = (int(size) for size in torch.randint(2, 40, (2,), generator=generator))
    y, x = torch.arange(h)[:, None] / h, torch.arange(w) / w
    depth = uniform(6, 2, 1, 1) - ((y - uniform(6, 2, 1, 1)) ** 2 + (x - uniform(6, 2, 1, 1)) ** 2).sqrt() * 2
    truth = depth + 0.3 * uniform(6, 2, h, w) > 0.3
    probabilities = torch.sigmoid(20 * (depth + 0.5 * uniform(6, 2, h, w) - 0.4))
    truth[0, 0], truth[1, 1], truth[2] = False, True, uniform(2, h, w) > 0.5
    truth[3, 0] = False
    truth[3, 0, h // 2, w // 2] = True
    probabilities[4, 0] = truth[4, 0].double()
    probabilities[5, 0] = uniform(h, w)
    return probabilities, truth
