"""An adapter of a user's network says at the first batch what the network cannot do, and how to mend it."""

import copy

import pytest
import torch
from torch import nn

import ttdg
from ttdg.adaptation import METHODS
from ttdg.errors import UserError

METHODS_WITHOUT_PARTS = ("source", "norm", "tent", "self-training", "memo")
OPTIONS = {"self-training": {"draw": 2, "steps": 1}, "memo": {"views": 2}}


@pytest.fixture(params=METHODS_WITHOUT_PARTS)
def adapt(request):
    """Adapt a network with a method."""

    def build(network, activation="softmax"):
        return ttdg.adapt(network, request.param, activation=activation, **OPTIONS.get(request.param, {}))

    return build


class Coarse(nn.Module):
    def forward(self, logits):
        return logits[..., ::2, ::2]


class Flat(nn.Module):
    def forward(self, logits):
        return logits[:, 0]


class Pair(nn.Module):
    def forward(self, logits):
        return logits, logits


class Apply(nn.Module):
    """Applies a function to the logits, in which no module can be found."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, logits):
        return self.function(logits)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("last", [nn.Softmax(1), nn.Softmax2d(), nn.Sigmoid()])
def test_a_network_that_ends_with_a_module_of_probabilities_is_refused(
    last, activation, adapt, small, labelled
):
    name = type(last).__name__
    with pytest.raises(UserError, match=rf"ends with {name}, .* expect logits; .* the values before {name}"):
        adapt(small(last=last), activation)(labelled[0])


def test_values_that_can_only_be_probabilities_are_refused(adapt, small, labelled):
    images, _ = labelled
    with pytest.raises(UserError, match=r"sum to 1 over the channels\), .*the values before the softmax"):
        adapt(small(last=Apply(lambda z: z.softmax(1))))(images)
    decided = Apply(lambda z: (50 * (z - z.mean())).sigmoid())
    with pytest.raises(UserError, match=r"look like probabilities .*the values before the sigmoid"):
        adapt(small(last=decided), "sigmoid")(images)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "last",
    [
        nn.Identity(), nn.LogSoftmax(1), nn.ReLU(), nn.Softplus(), nn.Sequential(nn.Sigmoid(), nn.Conv2d(3, 3, 1)),
        Apply(lambda z: 0.2 + 0.1 * z.sigmoid()),
    ],
)  # fmt: skip
def test_logits_are_taken(last, activation, adapt, small, labelled):
    assert adapt(small(last=last), activation)(labelled[0][:4]).isfinite().all()


def test_the_first_pass_leaves_no_hook_and_no_mode_in_the_network(adapt, small, labelled):
    for network in (small(), small(last=nn.Sequential(nn.Sigmoid(), nn.Conv2d(3, 3, 1))).train()):
        modes = [module.training for module in network.modules()]
        adapt(network)(labelled[0][:4])
        assert [module.training for module in network.modules()] == modes
        assert not any(module._forward_hooks for module in network.modules())


def test_only_the_first_batch_costs_a_pass_of_the_unadapted_network(adapt, small, labelled):
    network, seen = small(), []
    network.register_forward_hook(lambda module, given, result: seen.append((module, len(given[0]))))
    adapter = adapt(network)
    for _ in range(3):
        adapter(labelled[0][:4])
    assert [count for module, count in seen if module is adapter._conversions.source] == [1]
    assert not [module for module, _ in seen if module is network]


@pytest.mark.parametrize("training", [False, True])
def test_frames_that_show_nothing_are_answered_by_a_copy_that_was_made_before(
    training, small, labelled, monkeypatch
):
    network, empty = small().train(training), torch.zeros_like(labelled[0][:2])
    adapter = ttdg.adapt(network, "tent", activation="softmax")
    copies, deepcopy = [], copy.deepcopy
    monkeypatch.setattr(copy, "deepcopy", lambda given, *memo: copies.append(given) or deepcopy(given, *memo))
    with torch.no_grad():
        expected = deepcopy(network).eval()(empty)
    with pytest.warns(RuntimeWarning, match="show nothing"):
        assert all(torch.equal(adapter(empty), expected) for _ in range(3))
    assert not any(isinstance(given, nn.Module) for given in copies)
    assert network.training is training


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].parts])
def test_a_program_of_torchscript_is_answered_by_source_only(method, small, labelled):
    program = torch.jit.script(nn.Sequential(*list(small())[:-1]))
    if method == "source":
        assert torch.equal(ttdg.adapt(program, method)(labelled[0]), program(labelled[0]))
    else:
        with pytest.raises(UserError, match="give the network from which it was made, or use the method"):
            ttdg.adapt(program, method)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (Coarse(), r"logits of shape \(3, 16, 16\); .* enlarge them to \(channels, 32, 32\)"),
        (Flat(), r"logits of shape \(32, 32\); .* to \(channels, 32, 32\)"),
        (Pair(), r"a tuple of 2, not a tensor of logits; say which output"),
    ],
)
def test_outputs_of_another_shape_are_refused(last, message, adapt, small, labelled):
    with pytest.raises(UserError, match=message):
        adapt(small(last=last))(labelled[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :1], r"fails on images of shape \(1, 32, 32\) .*; give images of the channels, and"),
        (
            lambda x: x[..., :2, :2],
            r"fails on images of shape \(3, 2, 2\) .*; give images of the channels, and",
        ),
        (lambda x: x[..., :30, :30], "or give images of a size that it keeps"),
        (lambda x: x.double(), r"are torch\.float64 and the network is torch\.float32; convert one"),
        (lambda x: x.to("meta"), "the images are on meta and the network is on cpu; move one of them"),
        (lambda x: x[0], r"give one image as images\[None\]"),
    ],
)
def test_images_that_the_network_cannot_take_are_refused(change, message, adapt, small, labelled):
    with pytest.raises(UserError, match=message):
        adapt(small())(change(labelled[0]))


def test_the_first_pass_changes_no_answer(small, labelled):
    class Ready:
        network, parts = small(), {}

    images, _ = labelled
    for method in ("source", "tent"):
        expected = ttdg.adapt(Ready(), method)(images)
        assert torch.equal(ttdg.adapt(small(), method, activation="softmax")(images), expected)


def test_a_classifier_is_adapted_without_height_and_width(labelled, unchecked):
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert ttdg.adapt(network, "tent", activation="softmax")(labelled[0]).shape == (10, 4)


def test_a_network_without_weights_is_not_adapted(labelled):
    assert ttdg.adapt(nn.Identity(), "source")(labelled[0]).shape == (10, 3, 32, 32)
    for method in METHODS:
        if not METHODS[method].parts and method != "source":
            with pytest.raises(UserError, match="no parameters, so nothing can be adapted"):
                ttdg.adapt(nn.Identity(), method)


def test_what_is_no_network_is_refused(labelled, unchecked):
    with pytest.raises(
        UserError, match=r"or a checkpoint that `ttdg\.load` has read, not a value of type str"
    ):
        ttdg.adapt("demo", "tent")
    with pytest.raises(UserError, match=r"fitted to a torch\.nn\.Module, not to a value of type str"):
        ttdg.fit("demo", *labelled)


def test_a_site_in_one_tensor_is_to_be_split(small, labelled, unchecked):
    adapter = ttdg.adapt(small(), "self-training", activation="softmax", folder_steps=1, draw=2)
    with pytest.raises(UserError, match=r"give images\.split\(8\), not one tensor"):
        adapter.learn(labelled[0])
    adapter.learn(labelled[0].split(8))
