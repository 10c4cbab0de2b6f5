"""What every method must do, over the whole METHODS table: a new line there is tested without a word here."""

import copy
import inspect

import pytest
import torch
from torch import nn

import ttdg
from ttdg.adapt import METHODS, adapt, batchnorm, defaults
from ttdg.errors import UserError

ALL = sorted(METHODS)
GRADIENT = [name for name in ALL if METHODS[name].backwards]

PARTS = {  # a declaration's words → which names of the state dict may move
    "nothing": lambda name: False,
    "BatchNorm γ, β": lambda name: name.split(".")[0] in ("1", "4") and name.endswith(("weight", "bias")),
}
MODES = {"EVAL": batchnorm.EVAL, "BATCH": batchnorm.BATCH, "TRAIN": batchnorm.TRAIN}


def a_network(channels: int = 3, labels: int = 2, seed: int = 0) -> nn.Module:
    """Any user's module: no encode, no decode. Its running statistics are those of another hospital."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, labels, 1),
    )  # fmt: skip
    for layer in (network[1], network[4]):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        nn.init.uniform_(layer.weight, 0.5, 1.5)
    return network


def some_images(count: int = 4, channels: int = 3, size: int = 16, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed)) + 1


def mode_of(name: str) -> batchnorm.Mode:
    norm = METHODS[name].norm
    if norm.startswith("MIX("):
        return batchnorm.Mix(defaults(name)[norm[4:-1]])
    return MODES[norm]


def plain(network: nn.Module, mode: batchnorm.Mode, images: torch.Tensor) -> torch.Tensor:
    network = copy.deepcopy(network).eval()
    batchnorm.use(network, mode)
    with torch.no_grad():
        return network(images)


@pytest.mark.parametrize("name", ALL)
def test_answers_are_finite_and_carry_no_gradient(name):
    adapter = adapt(a_network(), name)
    for seed in range(3):
        logits = adapter(some_images(seed=seed))
        assert logits.shape == (4, 2, 16, 16)
        assert logits.isfinite().all()
        assert not logits.requires_grad


@pytest.mark.parametrize("name", ALL)
def test_reset_is_bit_exact(name):
    network = a_network()
    adapter = adapt(network, name)
    first = adapter(some_images())
    adapter(some_images(seed=5))
    adapter.reset()
    for key, value in adapter.network.state_dict().items():
        assert torch.equal(value, network.state_dict()[key]), key
    assert torch.equal(adapter(some_images()), first)


@pytest.mark.parametrize("name", ALL)
def test_the_users_network_is_never_touched(name):
    network = a_network().train()
    before = copy.deepcopy(network.state_dict())
    adapt(network, name)(some_images())
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert type(network[1]) is nn.BatchNorm2d


@pytest.mark.parametrize("name", ALL)
def test_the_same_stream_gives_the_same_answers(name):
    a, b = adapt(a_network(), name), adapt(a_network(), name)
    for seed in range(3):
        assert torch.equal(a(some_images(seed=seed)), b(some_images(seed=seed)))


@pytest.mark.parametrize("name", ALL)
def test_what_is_declared_moves_and_nothing_else(name):
    network = a_network()
    adapter = adapt(network, name)
    adapter(some_images())
    moved = {
        k for k, v in adapter.network.state_dict().items() if not torch.equal(v, network.state_dict()[k])
    }
    assert moved == {key for key in network.state_dict() if PARTS[METHODS[name].adapts](key)}


@pytest.mark.parametrize("name", ALL)
def test_memory_is_declared(name):
    """Without memory the second batch is answered as if it were the first."""
    a, b = adapt(a_network(), name), adapt(a_network(), name)
    for seed in range(3):
        a(some_images(seed=seed))
    same = torch.equal(a(some_images(seed=9)), b(some_images(seed=9)))
    assert same is not METHODS[name].memory


@pytest.mark.parametrize("name", ALL)
def test_no_argument_could_carry_a_label(name):
    assert list(inspect.signature(type(adapt(a_network(), name)).__call__).parameters) == ["self", "images"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_norm_mode_is_as_declared_in_train_and_eval_mode_alike(name, mode):
    network, images = a_network(), some_images()
    adapter = adapt(network, name)
    getattr(adapter.network, mode)()
    with torch.no_grad():
        assert torch.equal(adapter.network(images), plain(network, mode_of(name), images))


@pytest.mark.parametrize("name", GRADIENT)
def test_a_rate_of_zero_is_the_plain_network_in_that_norm_mode(name):
    network, images = a_network(), some_images()
    adapter = adapt(network, name, lr=0.0)
    for _ in range(2):
        assert torch.allclose(adapter(images), plain(network, mode_of(name), images), atol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "images",
    [
        some_images(count=1),
        torch.zeros(4, 3, 16, 16),
        torch.full((2, 3, 16, 16), 255.0),
        some_images(size=2),
        some_images(count=1, size=1),
    ],
    ids=["one image", "black", "saturated", "tiny", "one pixel"],
)
def test_hostile_images_are_survived(name, images):
    adapter = adapt(a_network(), name)
    for _ in range(3):
        assert adapter(images).isfinite().all()
    assert all(value.isfinite().all() for value in adapter.network.state_dict().values())


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_nan_does_not_poison_the_network(name):
    adapter = adapt(a_network(), name)
    adapter(torch.full((2, 3, 16, 16), float("nan")))
    assert adapter(some_images()).isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_passes_are_counted_as_declared(name):
    adapter, count = adapt(a_network(), name), {"forward": 0, "backward": 0}
    adapter.network.register_forward_hook(lambda *_: count.update(forward=count["forward"] + 1))
    adapter.network[-1].register_full_backward_hook(lambda *_: count.update(backward=count["backward"] + 1))
    adapter(some_images())
    assert (count["forward"], count["backward"]) == (METHODS[name].forwards, METHODS[name].backwards)


@pytest.mark.parametrize("name", GRADIENT)
def test_its_own_objective_falls_on_a_fixed_batch(name):
    adapter, images = adapt(a_network(), name, lr=1e-2), some_images()
    losses = [adapter.objective(adapter(images)).item() for _ in range(20)]
    assert losses[-1] < losses[0] - 1e-3


@pytest.mark.parametrize("name", ALL)
def test_grey_images_and_sigmoid_heads_work(name):
    options = {"head": "sigmoid"} if "head" in defaults(name) else {}
    adapter = adapt(a_network(channels=1, labels=1), name, **options)
    assert adapter(some_images(channels=1)).isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_a_network_without_batchnorm_works_or_says_why_not(name):
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    if "BatchNorm" in METHODS[name].needs:
        with pytest.raises(UserError, match="no BatchNorm layer"):
            adapt(network, name)
    else:
        assert adapt(network, name)(some_images()).isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_episodic_answers_do_not_depend_on_the_order_of_batches(name):
    adapter, batches = adapt(a_network(), name), [some_images(seed=s) for s in range(3)]

    def episodic(order):
        answers = {}
        for index in order:
            adapter.reset()
            answers[index] = adapter(batches[index])
        return answers

    forth, back = episodic([0, 1, 2]), episodic([2, 0, 1])
    assert all(torch.equal(forth[i], back[i]) for i in range(3))


def test_the_package_is_also_the_verb():
    assert torch.equal(
        ttdg.adapt(a_network(), "norm")(some_images()), adapt(a_network(), "norm")(some_images())
    )


def test_wrong_names_are_answered_with_the_right_ones():
    with pytest.raises(UserError, match="did you mean 'tent'"):
        adapt(a_network(), "tnet")
    with pytest.raises(UserError, match="has no option 'lrr'; did you mean 'lr'"):
        adapt(a_network(), "tent", lrr=1)
    with pytest.raises(UserError, match=r"option lr of 'tent' is float, such as 0\.0001, not 'fast'"):
        adapt(a_network(), "tent", lr="fast")
    with pytest.raises(UserError, match="option head of 'tent' is one of softmax, sigmoid, not 'linear'"):
        adapt(a_network(), "tent", head="linear")
    assert adapt(a_network(), "alpha-bn", alpha=1)
