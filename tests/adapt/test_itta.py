"""ITTA: mappings that start as the identity, MixStyle, and what moves."""

import pytest
import torch
from torch import nn

from ttdg.errors import UserError
from ttdg.networks.consistency import ElementWise, mixed, statistics


def images(seed: int = 1, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 64, 64, generator=generator) * torch.arange(1.0, count + 1).view(-1, 1, 1, 1)


@pytest.mark.parametrize("shape", [(4, 1, 1), (4, 8, 8)])
def test_a_mapping_starts_as_the_identity_of_what_is_not_negative(shape):
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(ElementWise(shape, 5)(x), x)


def test_mixing_is_between_the_own_style_and_the_partner_s():
    x, y = torch.randn(2, 4, 16, 16), torch.randn(2, 4, 16, 16) * 3 + 1
    assert torch.allclose(mixed(x, statistics(y), torch.ones(2, 1, 1, 1)), x, atol=1e-5)
    styled = mixed(x, statistics(y), torch.zeros(2, 1, 1, 1))
    for a, b in zip(statistics(styled), statistics(y), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("mapping", ["channel", "element"])
def test_with_rate_zero_it_is_the_source(ready, mapping):
    source = ready("itta")
    adapter = source.adapt("itta", lr=0.0, mapping=mapping)
    assert torch.allclose(adapter(images()), source.adapt("source")(images()), atol=1e-6)


@pytest.mark.parametrize("mapping", ["channel", "element"])
def test_the_mapping_nets_move_and_nothing_else(ready, mapping):
    source = ready("itta")
    adapter = source.adapt("itta", lr=1e-3, mapping=mapping)
    adapter(images())
    before, now = source.network.state_dict(), adapter.network.state_dict()
    assert all(torch.equal(value, now[name]) for name, value in before.items())
    assert any((m.weight != 1).any() for m in adapter.maps)
    part = source.parts["itta"].tensors
    assert all(torch.equal(value, part[name]) for name, value in adapter.measure.state_dict().items())


def test_alone_and_without_memory_an_image_changes_nothing(ready):
    """The published failure: at batch 1 MixStyle mixes an image with itself."""
    adapter = ready("itta").adapt("itta", lr=1e-3, remember=False)
    for seed in range(3):
        adapter(images(seed, count=1))
    together = ready("itta").adapt("itta", lr=1e-3, remember=False)
    together(images(count=4))
    assert adapter.loss < 0.01 * together.loss  # but for rounding


def test_alone_but_with_memory_the_image_before_gives_its_style(ready):
    losses = {}
    for remember in (True, False):
        adapter = ready("itta").adapt("itta", lr=0.0, remember=remember)
        losses[remember] = []
        for seed in range(6):
            adapter(images(seed, count=1) * (1 + seed))
            losses[remember].append(adapter.loss.item())
    assert losses[True][0] == losses[False][0]  # nobody came before
    assert max(losses[True]) > 10 * max(losses[False])


def test_the_consistency_falls_on_a_fixed_batch_and_style(ready):
    adapter, losses = ready("itta").adapt("itta", lr=1e-2), []
    for _ in range(30):
        adapter.styles.reset()  # the same style again
        adapter(images())
        losses.append(adapter.loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_an_encoder_with_negative_levels_is_refused(ready):
    source = ready("itta")
    for stage in source.network.unet.encoder.stages:
        stage[-1] = nn.Identity()
    with pytest.raises(UserError, match="end in ReLU"):
        source.adapt("itta")
