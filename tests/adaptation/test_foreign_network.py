"""Networks of users under every method: half precision, volumes, several outputs, and what their channels mean."""

import pytest
import torch
from torch import nn

from ttdg.adaptation import METHODS, adapt, defaults
from ttdg.adaptation.own_network.output import OutputForm, read_as
from ttdg.errors import UserError

FREE = [name for name, m in METHODS.items() if not m.parts and "encode/decode" not in m.needs]
SMALL = {"self-training": {"draw": 2, "steps": 1}, "cbmt": {}, "memo": {"views": 2}}


def network(dimensions: int = 2, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dimensions == 2 else (nn.Conv3d, nn.BatchNorm3d)
    return nn.Sequential(conv(1, 4, 3, padding=1), norm(4), nn.ReLU(), conv(4, outputs, 1)).eval()


def images(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FREE)
def test_a_network_in_float16_stays_finite_over_many_calls(name):
    source = network().half()
    adapter = adapt(source, name, activation="softmax", **SMALL.get(name, {}))
    for seed in range(3):
        answer = adapter(images(16, 16, seed=seed).half())
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
    assert all(p.dtype == torch.float16 and p.isfinite().all() for p in source.parameters())


@pytest.mark.parametrize("name", ["tent", "cotta"])
def test_float16_is_adapted_exactly_as_its_values_in_float32(name):
    half, single = network().half(), network().half().float()
    first, second = (adapt(x, name, activation="softmax") for x in (half, single))
    for seed in range(2):
        torch.manual_seed(seed)
        expected = second(images(16, 16, seed=seed).half().float())
        torch.manual_seed(seed)
        assert torch.equal(first(images(16, 16, seed=seed).half()), expected)


@pytest.mark.parametrize("name", ["tent", "cotta"])
def test_bfloat16_stays_bfloat16(name):
    adapter = adapt(network().bfloat16(), name, activation="softmax")
    for seed in range(3):
        answer = adapter(images(16, 16, seed=seed).bfloat16())
    assert answer.dtype == torch.bfloat16
    assert answer.isfinite().all()


@pytest.mark.parametrize("name", FREE)
def test_volumes_are_adapted_or_refused_in_a_sentence(name):
    adapter = adapt(network(3), name, activation="softmax", **SMALL.get(name, {}))
    if METHODS[name].volumes:
        assert adapter(images(4, 16, 16)).shape == (2, 2, 4, 16, 16)
        assert adapter(images(4, 16, 16, seed=1)).isfinite().all()
    else:
        with pytest.raises(
            UserError, match="slices of a volume as images, or use a method that takes volumes"
        ):
            adapter(images(4, 16, 16))


def test_a_volume_has_a_mirror_image_and_no_other_sizes():
    source = network(3)
    answer = adapt(source, "source", activation="softmax", views="flips")(images(4, 16, 16))
    with torch.no_grad():
        here, there = source(images(4, 16, 16)), source(images(4, 16, 16).flip(3)).flip(3)
    assert torch.allclose(answer.softmax(1), (here.softmax(1) + there.softmax(1)) / 2, atol=1e-5)
    with pytest.raises(UserError, match="not of volumes"):
        adapt(source, "source", activation="softmax", views="scales")(images(4, 16, 16))


@pytest.mark.parametrize("name", FREE)
def test_only_methods_that_depend_on_the_activation_ask_for_it(name):
    x, three = images(16, 16), network(outputs=3)
    if "head" in defaults(name):
        with pytest.raises(UserError, match="nothing says whether the 3 output channels"):
            adapt(three, name)(x)
        assert adapt(three, name, head="sigmoid", **SMALL.get(name, {}))(x).shape[1] == 3
        assert adapt(network(), name, **SMALL.get(name, {}))(x).shape[1] == 2  # background and one structure
    else:
        assert adapt(three, name)(x).shape[1] == 3
        with pytest.raises(UserError, match="nothing says whether the 3 output channels"):
            adapt(three, name, views="flips")(x)


def test_the_activation_is_the_option_head_of_a_method():
    x = images(16, 16)
    said, given = adapt(network(), "tent", activation="sigmoid"), adapt(network(), "tent", head="sigmoid")
    other = adapt(network(), "tent", activation="softmax")
    for adapter in (said, given, other):
        adapter(x)
    assert torch.equal(said(x), given(x))
    assert not torch.equal(said(x), other(x))


def test_labels_of_independent_channels_are_their_distribution_given_the_allowed_combinations():
    form = OutputForm(activation="sigmoid", label_sets=((), (0,), (1,), (0, 1)))
    z = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    p, q = z.sigmoid().unbind(1)
    expected = torch.stack(
        [(1 - p) * (1 - q), p * (1 - q), (1 - p) * q, p * q], 1
    )  # all combinations: independent
    assert torch.allclose(form.label_logits(z).softmax(1), expected, atol=1e-6)
    assert torch.allclose(form.channel_logits(form.label_logits(z)), z, atol=1e-4)


def test_reading_an_output_changes_no_name_of_a_network():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(1, 2, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return 0 * self.inner(x), self.inner(x)

    source = Two()
    names, expected = list(source.state_dict()), source(images(4, 4))[1]
    read_as(source, OutputForm(1), labels=False)
    assert torch.equal(source(images(4, 4)), expected)
    assert list(source.state_dict()) == names
    assert isinstance(source, Two)
