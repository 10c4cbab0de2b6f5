"""ITTA: mapping nets that start as the identity, MixStyle, and which values change."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ttdg.errors import UserError
from ttdg.networks import Classifier, NetworkSpec, pyramid
from ttdg.networks.heads.consistency import ElementWiseNet, MixStyle, mix_style, style_statistics


def images(seed: int = 1, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 64, 64, generator=generator) * torch.arange(1.0, count + 1).view(-1, 1, 1, 1)


@pytest.mark.parametrize("shape", [(4, 1, 1), (4, 8, 8)])
def test_a_mapping_starts_as_the_identity_of_what_is_not_negative(shape):
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(ElementWiseNet(shape, 5)(x), x)


def test_mixing_is_between_the_own_style_and_the_partner_s():
    x, y = torch.randn(2, 4, 16, 16), torch.randn(2, 4, 16, 16) * 3 + 1
    assert torch.allclose(mix_style(x, style_statistics(y), torch.ones(2, 1, 1, 1)), x, atol=1e-5)
    styled = mix_style(x, style_statistics(y), torch.zeros(2, 1, 1, 1))
    for a, b in zip(style_statistics(styled), style_statistics(y), strict=True):
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
    """In the authors' code, MixStyle mixes a single image with itself."""
    adapter = ready("itta").adapt("itta", lr=1e-3, remember=False)
    for seed in range(3):
        adapter(images(seed, count=1))
    together = ready("itta").adapt("itta", lr=1e-3, remember=False)
    together(images(count=4))
    assert adapter.loss < 0.01 * together.loss  # up to rounding


def test_alone_but_with_memory_the_image_before_gives_its_style(ready):
    losses = {}
    for remember in (True, False):
        adapter = ready("itta").adapt("itta", lr=0.0, remember=remember)
        losses[remember] = []
        for seed in range(6):
            adapter(images(seed, count=1) * (1 + seed))
            losses[remember].append(adapter.loss.item())
    assert losses[True][0] == losses[False][0]  # there is no previous image
    assert max(losses[True]) > 10 * max(losses[False])


def test_the_consistency_falls_on_a_fixed_batch_and_style(ready):
    adapter, losses = ready("itta").adapt("itta", lr=1e-2), []
    for _ in range(12):
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


def test_alone_and_without_memory_the_gradient_is_zero(ready):
    """In double precision, and f_w is not scaled, so that it does not amplify rounding errors."""
    source = ready("itta")
    network = copy.deepcopy(source.network).double()
    plain = ElementWiseNet((source.parts["itta"].settings["width"],), 10).to_part()
    largest = {}
    for count in (1, 3):
        adapter = type(source)(network, {"itta": plain}).adapt("itta", remember=False)
        x = images(count=3)[-count:].double()
        adapter._create_maps(x)
        adapter.objective(x).backward()
        largest[count] = max(p.grad.abs().max().item() for p in adapter.maps.parameters())
    assert largest[1] < 1e-6 * largest[3]


def test_at_every_step_of_a_single_image_the_partner_is_the_image_before(ready):
    source, partners = ready("itta"), []
    adapter = source.adapt("itta", lr=0.0, steps=3)
    choose = adapter.styles._partners

    def watched(now, before):
        partners.append((adapter.styles.level, choose(now, before)))
        return partners[-1][1]

    adapter(images(1, count=1))
    adapter.styles._partners = watched
    adapter(images(2, count=1) * 4)
    with torch.no_grad():
        before = source.network.encode(images(1, count=1))
    assert len(partners) == 3
    for level, found in partners:
        for a, b in zip(found, style_statistics(before[level]), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    assert adapter.loss > 0


class FixedDraws:
    """A random generator with fixed results that records its arguments."""

    def __init__(self, coin: float) -> None:
        self.coin, self.asked = coin, []

    def random(self) -> float:
        return self.coin

    def beta(self, *arguments):
        self.asked.append(arguments)
        return np.zeros(arguments[2])  # only the partner's style


@pytest.mark.parametrize(("coin", "level"), [(0.9, 1), (0.1, 2)])
def test_styles_are_mixed_at_one_level_and_drawn_as_published(ready, coin, level):
    network = ready("itta").network
    styles = MixStyle([producer for producer, _ in pyramid.level_modules(network)], seed=0)
    styles.rng = FixedDraws(coin)
    with torch.no_grad():
        features = styles.encode_both(network, images())
    assert styles.rng.asked == [(0.1, 0.1, (3, 1, 1, 1))]
    for number, feature in enumerate(features):
        own, other = feature.chunk(2)
        assert torch.allclose(own, other) is (number < level)
    own, other = features[level].chunk(2)
    assert torch.allclose(other.mean((2, 3)), own.mean((2, 3)).roll(1, 0), atol=1e-5)


def test_both_levels_are_drawn(ready):
    adapter = ready("itta").adapt("itta")
    drawn = set()
    plain = adapter.network.encode
    adapter.network.encode = lambda x: drawn.add(adapter.styles.level) or plain(x)
    for _ in range(12):
        adapter.objective(images())
    assert drawn == {1, 2}


def test_the_moments_of_adam_are_kept_from_batch_to_batch(ready):
    adapter = ready("itta").adapt("itta", lr=1e-3)
    for batch in range(1, 4):
        adapter(images(batch))
        state = adapter.descent.optimiser.state
        assert {int(state[p]["step"]) for p in adapter.maps.parameters()} == {batch}


@pytest.mark.parametrize("mapping", ["channel", "element"])
def test_a_batch_without_a_finite_image_changes_nothing(ready, mapping):
    bad = torch.full((1, 3, 32, 96), float("nan"))
    disturbed, calm = (ready("itta").adapt("itta", lr=1e-3, steps=2, mapping=mapping) for _ in range(2))
    for adapter in (disturbed, calm):
        for seed in (1, 2):
            if adapter is disturbed:
                assert disturbed(bad).shape == (1, 2, 32, 96)
            adapter(images(seed, count=1))
    disturbed(bad)
    assert torch.equal(disturbed(images(3, count=1)), calm(images(3, count=1)))


def test_a_batch_with_a_finite_image_is_learnt_from(ready):
    adapter, some = ready("itta").adapt("itta", lr=1e-3), images()
    some[0] = float("inf")
    adapter(some)
    assert any((m.weight != 1).any() for m in adapter.maps)


@pytest.mark.parametrize("mapping", ["channel", "element"])
def test_a_classifier_is_adapted_too(ready, mapping):
    """The published form is for classification."""
    torch.manual_seed(0)
    network = Classifier(NetworkSpec(labels=5, encoder="light")).eval()
    measure = ElementWiseNet((network.linear.in_features,), 10)
    measure.weight.data.mul_(2.0)
    model = replace(ready("itta"), network=network, parts={"itta": measure.to_part()})
    adapter = model.adapt("itta", lr=1e-2, mapping=mapping)
    first, again = adapter(images()), adapter(images())
    assert first.shape == (3, 5, 64, 64)
    assert first.equal(first[..., :1, :1].expand_as(first))  # one class for a whole image
    assert not torch.equal(first, again)
    adapter.reset()
    assert torch.allclose(adapter(images()), first)
