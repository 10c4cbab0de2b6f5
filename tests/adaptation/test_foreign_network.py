"""Networks of users under every method: half precision, volumes, several outputs, and what their channels mean."""

import pickle

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


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FREE)
def test_a_network_of_half_precision_is_adapted_in_float32(name, precision):
    source = network().to(precision)
    adapter = adapt(source, name, activation="softmax", **SMALL.get(name, {}))
    for seed in range(3):
        answer = adapter(images(16, 16, seed=seed).to(precision))
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
    assert all(p.dtype == precision and p.isfinite().all() for p in source.parameters())


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["tent", "cotta"])
def test_half_precision_is_adapted_exactly_as_its_values_in_float32(name, precision):
    other, single = network().to(precision), network().to(precision).float()
    first, second = (adapt(x, name, activation="softmax") for x in (other, single))
    for seed in range(2):
        torch.manual_seed(seed)
        expected = second(images(16, 16, seed=seed).to(precision).float())
        torch.manual_seed(seed)
        assert torch.equal(first(images(16, 16, seed=seed).to(precision)), expected)


@pytest.mark.parametrize("name", ["tent", "source"])
def test_views_of_half_precision_are_answered_in_float32(name):
    half, same = network().bfloat16(), network().bfloat16().float()
    wrapped, single = (adapt(x, name, views="flips", activation="softmax") for x in (half, same))
    batch = images(16, 16).bfloat16()
    assert torch.equal(wrapped(batch), single(batch.float()))


def test_in_bfloat16_updates_are_not_rounded_to_nothing():
    source = network().bfloat16()
    adapter = adapt(source, "tent", activation="softmax")
    adapter(images(16, 16).bfloat16())
    assert not torch.equal(adapter.network[1].weight, source[1].weight.float())


class Activated(nn.BatchNorm2d):
    """BatchNorm with its activation inside, as timm has it."""

    def forward(self, x):
        return torch.relu(super().forward(x))


class ByItself(nn.BatchNorm2d):
    """The same, which computes BatchNorm with torch's function."""

    def forward(self, x):
        use = self.training
        return torch.relu(
            nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, use)
        )


def activated(layer: type[nn.BatchNorm2d]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), layer(4), nn.Conv2d(4, 2, 1)).eval()


@pytest.mark.parametrize("layer", [Activated, ByItself])
def test_a_batchnorm_layer_with_a_forward_of_its_own_keeps_it(layer):
    source = activated(layer)
    for training in (False, True):
        adapter = adapt(source, "source", activation="softmax")
        adapter.network.train(training)
        assert torch.equal(adapter(images(16, 16)), source(images(16, 16)))
    learner = adapt(source, "self-training", activation="softmax", draw=2, steps=1, lr=0.0)
    torch.testing.assert_close(learner(images(16, 16)), source(images(16, 16)))


def test_a_method_changes_the_statistics_inside_a_forward_that_calls_torch_s():
    adapter, x = adapt(activated(Activated), "norm", activation="softmax"), images(16, 16)
    convolution, norm, last = activated(Activated)
    expected = last(
        torch.relu(nn.functional.batch_norm(convolution(x), None, None, norm.weight, norm.bias, True))
    )
    torch.testing.assert_close(adapter(x), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(adapter))(x), expected)


def test_a_method_whose_statistics_a_layer_ignores_says_so():
    with pytest.raises(UserError, match="ByItself compute their statistics themselves"):
        adapt(activated(ByItself), "norm", activation="softmax")(images(16, 16))


def test_a_network_that_changes_its_images_is_refused():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x):
            return self.layers(x.sub_(0.5))

    with pytest.raises(UserError, match=r"images\.clone\(\)"):
        adapt(InPlace().eval(), "source", activation="softmax")(images(16, 16))


def test_what_becomes_of_the_network_later_changes_no_answer():
    source, batch = network(), images(16, 16)
    batch[0] = 0  # an empty frame is answered by the unadapted network
    adapter = adapt(source, "norm", activation="softmax")
    before = adapter(batch)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.mul_(3)
    adapter.reset()
    assert torch.equal(adapter(batch), before)


class Stateful(nn.Conv2d):
    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize("name", FREE)
def test_shared_modules_and_state_that_is_no_tensor_are_accepted(name):
    torch.manual_seed(0)
    shared = nn.Conv2d(4, 4, 3, padding=1)
    source = nn.Sequential(
        Stateful(1, 4, 3, padding=1), nn.BatchNorm2d(4), shared, nn.ReLU(), shared, nn.Conv2d(4, 2, 1)
    ).eval()
    adapter = adapt(source, name, activation="softmax", **SMALL.get(name, {}))
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(adapter(images(16, 16)))
        adapter.reset()
    assert found[0].isfinite().all()
    assert torch.equal(*found)


def test_images_that_require_a_gradient_receive_none():
    asking = images(16, 16).requires_grad_()
    for name in FREE:
        logits = adapt(network(), name, activation="softmax", **SMALL.get(name, {}))(asking)
        assert not logits.requires_grad
        assert asking.grad is None, name


def test_a_network_that_keeps_tensors_of_an_earlier_pass_is_refused_in_a_sentence():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x):
            self.kept = [self.layers(x)]
            return self.kept[0]

    source = Keeping().eval()
    source(images(16, 16))
    with pytest.raises(UserError, match=r"Keeping keeps a tensor .*; run it on some images inside"):
        adapt(source, "tent", activation="softmax")
    with torch.no_grad():
        source(images(16, 16))
    assert adapt(source, "tent", activation="softmax")(images(16, 16)).isfinite().all()


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
