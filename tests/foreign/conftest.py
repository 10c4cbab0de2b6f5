"""A small network of a user, with labelled images, and a fit of a few steps."""

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

SHORT = {
    "steps": 1,
    "hospitals": 1,
    "draws": 1,
    "mixing_steps": 1,
    "learning_steps": 1,
    "folder_steps": 2,
    "learning_draw": 2,
}


class Small(nn.Sequential):
    """Two halvings and an enlargement; it takes images whose sides are multiples of four."""

    def __init__(self, channels: int = 3, outputs: int = 3, last: nn.Module | None = None) -> None:
        super().__init__(
            nn.Conv2d(channels, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 2, 2), nn.ReLU(),
            nn.Conv2d(6, outputs, 1), nn.Upsample(scale_factor=4), last or nn.Identity(),
        )  # fmt: skip


@pytest.fixture
def small():
    """`small(channels, outputs, last)` makes the network."""

    def make(*arguments, **named) -> nn.Module:
        torch.manual_seed(0)
        return Small(*arguments, **named).eval()

    return make


@pytest.fixture
def unchecked(monkeypatch):
    """Calls as users make them: without the check of types that the tests add."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def short():
    """Keywords of a short fit."""
    return dict(SHORT)


@pytest.fixture(scope="session")
def labelled() -> tuple[Tensor, Tensor]:
    """Ten images with label maps of the labels 0, 1 and 2."""
    generator = torch.Generator().manual_seed(0)
    masks = torch.zeros(10, 32, 32, dtype=torch.long)
    masks[:, 8:24, 8:24], masks[:, 12:20, 12:20] = 1, 2
    noise = 0.1 * torch.rand(10, 3, 32, 32, generator=generator)
    return 0.4 * masks[:, None] + noise, masks
