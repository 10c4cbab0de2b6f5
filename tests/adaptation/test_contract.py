"""The contract of all methods. The tests run over `METHODS`, so that a new method is tested without changes here."""

import copy
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import ttdg
from ttdg.adaptation import METHODS, adapt, checked, defaults
from ttdg.adaptation.adapter import Access
from ttdg.adaptation.options import LR, STEPS
from ttdg.errors import UserError
from ttdg.networks import batchnorm, split
from ttdg.networks.batchnorm.adamix import ADAMIX

ALL = sorted(METHODS)
GRADIENT = [name for name in ALL if METHODS[name].backwards]


def of_batchnorm(network: nn.Module, *endings: str) -> set[str]:
    layers = [name for name, module in network.named_modules() if isinstance(module, _BatchNorm)]
    return {f"{layer}.{ending}" for layer in layers for ending in endings}


def of_encoder(network: nn.Module, end: int | None) -> set[str]:
    """Names of γ and β of the encoder's BatchNorm layers, up to number `end`."""
    names = {module: name for name, module in network.named_modules()}
    with split.modules_used(network) as seen:
        network.encode(some_images(size=32))
    layers = [module for module in network.modules() if module in seen and isinstance(module, _BatchNorm)]
    return {f"{names[layer]}.{ending}" for layer in layers[:end] for ending in AFFINE}


AFFINE, STATISTICS = ("weight", "bias"), ("running_mean", "running_var")
ADAPTS: dict[
    str, Callable[[nn.Module], set[str]]
] = {  # the text of `adapts` → names of the values that change
    "nothing": lambda network: set(),
    "all weights": lambda network: {name for name, _ in network.named_parameters()},
    "all weights and BatchNorm statistics": lambda network: (
        {name for name, _ in network.named_parameters()} | of_batchnorm(network, *STATISTICS)
    ),
    "all weights up to the nodes' deepest level": lambda network: {
        name for name, _ in network.named_parameters()
        if not name.startswith(("unet.decoder.blocks.3", "unet.decoder.blocks.4", "unet.segmentation_head"))
    },
    "BatchNorm γ, β": lambda network: of_batchnorm(network, *AFFINE),
    "BatchNorm γ, β, shape head and fusion": lambda network: of_batchnorm(network, *AFFINE),  # in the network
    "BatchNorm γ, β outside layer4": lambda network: {
        name for name in of_batchnorm(network, *AFFINE) if "layer4" not in name
    },
    "BatchNorm statistics": lambda network: of_batchnorm(network, *STATISTICS),
    "BatchNorm γ, β and statistics": lambda network: of_batchnorm(network, *AFFINE, *STATISTICS),
    "prompt": lambda network: set(),
    "mapping nets": lambda network: set(),
    "BatchNorm statistics, γ, β of the encoder": lambda network: (
        of_batchnorm(network, *STATISTICS) | of_encoder(network, None)
    ),
    "prompt on the image, BatchNorm statistics, γ, β of the encoder but for its last layer": lambda network: (
        of_batchnorm(network, *STATISTICS) | of_encoder(network, -1)
    ),
    "early encoder": lambda network: {
        name for name in network.state_dict()
        if name.startswith(tuple(f"unet.encoder.stages.{i}." for i in range(3))) and "num_batches" not in name
    },
}  # fmt: skip

MODES: dict[str, batchnorm.Mode] = {  # the text of `norm` → the mode of the network between batches
    "EVAL": batchnorm.EVAL,
    "BATCH": batchnorm.BATCH,
    "ADAMIX": ADAMIX,
    "MIX(0…1)": batchnorm.EVAL,  # the mixtures are set during the call only
    "MIX(λₙ)": batchnorm.MixMode(1.0),  # λ₀
    "TRAIN, then EVAL": batchnorm.EVAL,
    "EVAL, then BATCH over neighbours": batchnorm.EVAL,
}

NEUTRAL = {  # options with which, at a rate of 0, a method predicts as the plain network
    "cotta": {"threshold": 0.0},
    "universe-gradient": {"average": False},
}
DESCENDING = {  # options with which the loss is the same function at every step
    "sar": {"margin": math.inf, "recover": -math.inf},  # else the set of sure pixels grows
    "domainadaptor": {"loss": "entropy"},  # GEM's temperature depends on the logits
    "vptta": {"warm": 1e-9, "size": 0.3},  # else the target statistics follow the stream
}
RANDOM = {
    "deynet",
    "grata",
    "itta",
    "universe",
}  # new random views, styles or noise at every step; see their own tests
LEARNED = {  # options with which answers show what was learned; the judge of these tests expects every site to lose
    "universe": {"choice": "adapted"}
}
STREAM = {"sictta": 12}  # number of batches after which a method needs the most passes


def some_images(count: int = 4, channels: int = 3, size: int = 16, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed)) + 1


def mode_of(name: str) -> batchnorm.Mode:
    norm = METHODS[name].norm
    if norm in MODES:
        return MODES[norm]
    assert norm.startswith("MIX("), f"add {norm!r} to MODES at the top of this file"
    share = norm[4:-1]  # name of an option, or a number
    return batchnorm.MixMode(defaults(name)[share] if share in defaults(name) else float(share))


def plain(network: nn.Module, mode: batchnorm.Mode, images: torch.Tensor) -> torch.Tensor:
    network = copy.deepcopy(network).eval()
    batchnorm.use(network, mode)
    with torch.no_grad():
        return network(images)


def moved(network: nn.Module, source: nn.Module) -> set[str]:
    return {k for k, v in network.state_dict().items() if not torch.equal(v, source.state_dict()[k])}


@pytest.mark.parametrize("name", ALL)
def test_answers_are_finite_and_carry_no_gradient(name, ready):
    adapter = ready(name).quick(name)
    for seed in range(2):
        logits = adapter(some_images(seed=seed))
        assert logits.shape == (4, 2, 16, 16)
        assert logits.isfinite().all()
        assert not logits.requires_grad


@pytest.mark.parametrize("name", ALL)
def test_reset_is_bit_exact(name, ready):
    source = ready(name)
    adapter = source.quick(name)
    answers = [adapter(some_images(seed=seed)) for seed in (1, 5)]
    adapter.reset()
    assert moved(adapter.network, source.network) == set()
    for seed, before in zip(
        (1, 5), answers, strict=True
    ):  # the second batch depends on the state after the first
        assert torch.equal(adapter(some_images(seed=seed)), before)


@pytest.mark.parametrize("name", ALL)
def test_the_users_network_is_never_touched(name, ready):
    source = ready(name)
    network = source.network.train().requires_grad_(True)
    before, classes = copy.deepcopy(network.state_dict()), [type(module) for module in network.modules()]
    source.quick(name)(some_images())
    assert network.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert [type(module) for module in network.modules()] == classes


@pytest.mark.parametrize("name", ALL)
def test_the_same_stream_gives_the_same_answers(name, ready):
    torch.manual_seed(1)
    a = ready(name).quick(name)
    answers = [a(some_images(seed=seed)) for seed in range(2)]
    b = ready(name).quick(name)
    torch.manual_seed(2)  # no method uses the global generator
    assert all(torch.equal(answers[seed], b(some_images(seed=seed))) for seed in range(2))


@pytest.mark.parametrize("name", ALL)
def test_building_using_and_resetting_an_adapter_leaves_the_global_random_generator_as_it_is(name, ready):
    source, images = ready(name), some_images()
    before = torch.get_rng_state()
    adapter = source.quick(name)
    assert torch.equal(torch.get_rng_state(), before)
    adapter(images)
    adapter.reset()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ALL)
def test_what_is_declared_moves_and_nothing_else(name, ready):
    source = ready(name)
    adapter = source.adapt(name)
    adapter(some_images(size=64))
    assert moved(adapter.network, source.network) == ADAPTS[METHODS[name].adapts](source.network)


@pytest.mark.parametrize("name", ALL)
def test_memory_is_declared(name, ready):
    """Without memory, a batch is predicted as if it were the first."""
    a, b = (ready(name).quick(name, **LEARNED.get(name, {})) for _ in range(2))
    for seed in range(2):
        a(some_images(seed=seed))
    same = torch.equal(a(some_images(seed=9)), b(some_images(seed=9)))
    assert same is not METHODS[name].memory


@pytest.mark.parametrize("name", ALL)
def test_no_argument_could_carry_a_label(name, ready):
    adapter = ready(name).adapt(name)
    assert list(inspect.signature(type(adapter).__call__).parameters) == ["self", "images"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_norm_mode_is_as_declared_in_train_and_eval_mode_alike(name, mode, ready):
    source, images = ready(name), some_images(size=32)
    adapter = source.adapt(name)
    getattr(adapter.network, mode)()
    with torch.no_grad():
        assert torch.equal(adapter.network(images), plain(source.network, mode_of(name), images))


def is_plain_without_steps(name: str) -> bool:
    """True if, at a rate of 0, the prediction is that of the network in one BatchNorm mode."""
    norm, options = METHODS[name].norm, defaults(name)
    return "lr" in options and (norm in ("EVAL", "BATCH", "ADAMIX") or norm[4:-1] in options)


@pytest.mark.parametrize("name", [name for name in GRADIENT if is_plain_without_steps(name)])
def test_a_rate_of_zero_is_the_plain_network_in_that_norm_mode(name, ready):
    source, images = ready(name), some_images()
    adapter = source.adapt(name, lr=0.0, **NEUTRAL.get(name, {}))
    for _ in range(2):
        probabilities = (
            x.softmax(1) for x in (adapter(images), plain(source.network, mode_of(name), images))
        )
        assert torch.allclose(*probabilities, atol=1e-5)


HOSTILE = {
    "one image": some_images(count=1),
    "black": torch.zeros(4, 3, 16, 16),
    "saturated": torch.full((2, 3, 16, 16), 255.0),
    "oblong": some_images(count=2, size=24)[..., :10],
    "tiny": some_images(size=2),
    "one pixel": some_images(count=1, size=1),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_images_are_survived(name, kind, ready):
    adapter = ready(name).quick(name)
    for _ in range(2):  # the second call uses the state that the first one left
        assert adapter(HOSTILE[kind]).isfinite().all()
    assert all(value.isfinite().all() for value in adapter.network.state_dict().values())


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_nan_does_not_poison_the_network(name, ready):
    adapter = ready(name).quick(name)
    for batch in (some_images(), torch.full((2, 3, 16, 16), float("nan")), some_images()):
        answer = adapter(batch)
    assert answer.isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_a_network_in_float64_is_adapted_in_float64_unless_the_method_works_in_float32(name, ready):
    model = ready(name)
    model.network.double()
    answer = model.quick(name)(some_images().double())
    assert answer.dtype == (torch.float32 if METHODS[name].single_precision else torch.float64)


@pytest.mark.parametrize("name", ALL)
def test_batches_may_differ_in_size(name, ready):
    adapter = ready(name).quick(name)
    for count, size in ((3, 32), (1, 64), (4, 32)):
        assert adapter(some_images(count, size=size)).shape == (count, 2, size, size)


@pytest.mark.parametrize("name", [name for name in GRADIENT if "lr" in defaults(name)])
def test_the_first_answer_depends_on_the_rate_only_if_it_is_made_after_the_update(name, ready):
    """A prediction before the update does not depend on the learning rate."""
    once = {"steps": 1} if "steps" in defaults(name) else {}
    answers = [ready(name).adapt(name, lr=lr, **once)(some_images()) for lr in (0.0, 0.1)]
    assert torch.equal(*answers) is (METHODS[name].predict == "before")


@pytest.mark.parametrize("name", GRADIENT)
def test_only_a_method_that_needs_two_images_does_nothing_with_single_ones(name, ready):
    """The second image counts, because a method may take what the first one lacks from the image before."""
    source = ready(name)
    adapter, (one, two) = source.adapt(name), some_images(2, size=32).split(1)
    adapter(one)
    unchanged = torch.equal(adapter(two), source.adapt("source")(two))
    assert unchanged is ("batch ≥ 2" in METHODS[name].needs)


def convolutions(network: nn.Module) -> list[nn.Module]:
    """The convolutions in the order in which they run."""
    order: list[nn.Module] = []
    kinds = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    handles = [module.register_forward_hook(lambda m, *_: order.append(m)) for module in kinds]
    with torch.no_grad():
        network(some_images(channels=kinds[0].in_channels, size=32))
    for handle in handles:
        handle.remove()
    return order


@pytest.mark.parametrize("name", ALL)
def test_passes_are_counted_as_declared(name, ready):
    """Passes are counted in batches through the convolution that runs most often.

    The hooks are set on the source network and copied with it by each method.
    """
    source, images, seen = ready(name), some_images(), {}

    def count(end: int, way: str, what: torch.Tensor) -> None:
        seen[end, way] = seen.get((end, way), 0) + len(what) / len(images)

    def hook(end: int) -> Callable[..., None]:
        def forward(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            count(end, "forward", output)
            if output.requires_grad:
                output.register_hook(lambda gradient: count(end, "backward", gradient))

        return forward

    for end, module in enumerate(convolutions(source.network)):
        module.register_forward_hook(hook(end))
    adapter, most = source.adapt(name), {"forward": 0.0, "backward": 0.0}
    for seed in range(STREAM.get(name, 2)):
        seen.clear()
        adapter(some_images(seed=seed))
        most = {way: max(most[way], *(n for (_, w), n in seen.items() if w == way), 0.0) for way in most}
    assert (most["forward"], most["backward"]) == (METHODS[name].forwards, METHODS[name].backwards)


@pytest.mark.parametrize("name", [name for name in GRADIENT if name not in RANDOM])
def test_its_own_objective_falls_on_a_fixed_batch(name, ready):
    """Over 12 batches, or over 12 steps for a method that restarts at every batch."""
    images, options = some_images(), {"lr": 1e-2, **DESCENDING.get(name, {})}
    if METHODS[name].memory:
        adapter = ready(name).quick(name, **options)
        losses = [loss_of(adapter, images) for _ in range(12)]
    else:
        losses = [loss_of(ready(name).adapt(name, steps=steps, **options), images) for steps in (1, 12)]
    assert losses[-1] < losses[0] - 1e-4


def loss_of(adapter, images) -> float:
    adapter(images)
    with torch.no_grad():
        return float(adapter.loss(images) if callable(adapter.loss) else adapter.loss)


@pytest.mark.parametrize(("channels", "labels"), [(1, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize("name", ALL)
def test_grey_images_and_sigmoid_heads_work(name, channels, labels, ready):
    options = {"head": "sigmoid"} if "head" in defaults(name) else {}
    labels = labels if options else max(labels, 2)
    adapter = ready(name, channels, labels).quick(name, **options)
    for seed in range(2):
        answer = adapter(some_images(channels=channels, seed=seed))
        assert answer.shape == (4, labels, 16, 16)
        assert answer.isfinite().all()


@pytest.mark.parametrize("name", [name for name in ALL if "head" in defaults(name)])
def test_a_network_of_one_channel_is_asked_for_a_sigmoid_head(name, ready):
    with pytest.raises(UserError, match='use head="sigmoid"'):
        ready(name, labels=1).adapt(name)(some_images())


@pytest.mark.parametrize("name", ALL)
def test_a_network_without_batchnorm_works_or_says_why_not(name, ready):
    source = ready(name)
    network = copy.deepcopy(source.network)
    for module in list(network.modules()):
        for child, layer in module.named_children():
            if isinstance(layer, _BatchNorm):
                setattr(module, child, nn.GroupNorm(1, layer.num_features))
    other = type(source)(network, source.parts)
    if "BatchNorm" in METHODS[name].needs:
        with pytest.raises(UserError, match="no BatchNorm layer"):
            other.adapt(name)
    elif "judge" in METHODS[name].parts:  # a judge that is fitted to this network would do
        with pytest.raises(
            UserError, match=r"was fitted to a network with \d+ BatchNorm layers, and this one has 0"
        ):
            other.adapt(name)
    else:
        assert other.adapt(name)(some_images()).isfinite().all()


@pytest.mark.parametrize("name", [name for name in ALL if "encode/decode" in METHODS[name].needs])
def test_a_network_without_encode_and_decode_is_refused(name, ready):
    other = type(ready(name))(ready("source").network, ready(name).parts)
    with pytest.raises(UserError, match="no encode and decode"):
        other.adapt(name)


@pytest.mark.parametrize("name", ALL)
def test_episodic_answers_do_not_depend_on_the_order_of_batches(name, ready):
    adapter, batches = ready(name).quick(name), [some_images(seed=s) for s in range(2)]

    def episodic(order):
        answers = {}
        for index in order:
            adapter.reset()
            answers[index] = adapter(batches[index])
        return answers

    forth, back = episodic([0, 1]), episodic([1, 0])
    assert all(torch.equal(forth[i], back[i]) for i in range(2))


@pytest.mark.parametrize("name", ALL)
def test_a_methods_declaration_is_complete(name):
    method = METHODS[name]
    assert all((method.summary, method.paper, method.origin))
    assert method.reset in ("episodic", "online", "continual")
    assert not (method.reset == "episodic" and method.memory), "an episodic method has no memory"
    assert set(method.needs) <= {"BatchNorm", "encode/decode", "dropout", "batch ≥ 2", "segmentation"}
    assert set(method.grid) <= set(defaults(name))
    assert math.prod(len(values) for values in method.grid.values()) <= 6, "tuning may try six configurations"


@pytest.mark.parametrize("name", ALL)
def test_what_a_method_needs_of_the_source_is_declared(name):
    method = METHODS[name]
    assert method.access in get_args(Access)
    assert (method.access == "source-free") is not bool(method.parts), (
        "parts, and only they, are fitted to the source"
    )
    assert not method.post_hoc or method.parts, "only parts can be fitted afterwards"


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_documented_and_no_other(name):
    options, values = METHODS[name].options, defaults(name)
    assert options.keys() == values.keys()
    for option, value in values.items():
        assert options[option].text.strip(), option
        assert options[option].origin.strip(), f"{option}: say where the default comes from"
        assert "\n" not in options[option].text + options[option].origin
        is_number = type(value) in (int, float)
        assert (options[option].range is not None) is is_number, (
            f"{option}: numbers, and only they, have a range"
        )
        assert not is_number or value in options[option].range


def test_shared_options_leave_their_origin_to_the_method():
    assert (LR.origin, STEPS.origin) == ("", "")
    assert LR.with_origin("the paper").text == LR.text


@pytest.mark.parametrize("method", ALL)
def test_a_number_out_of_its_range_is_refused_in_words(method):
    for name, option in METHODS[method].options.items():
        if (bounds := option.range) is None:
            continue
        kind = type(defaults(method)[name])
        beyond = [bounds.low - 1] if bounds.low > -math.inf else []
        beyond += [bounds.high + 1] if bounds.high < math.inf else []
        for value in (*map(kind, beyond), *([bounds.low] if bounds.above else [])):
            with pytest.raises(
                UserError, match=re.escape(f"option {name} of '{method}' must be {bounds}, not")
            ):
                checked(method, name, value)
        if kind is float:
            with pytest.raises(UserError, match="not nan"):
                checked(method, name, math.nan)
        assert checked(method, name, defaults(method)[name]) == defaults(method)[name]


def test_infinity_is_allowed_only_where_it_means_no_limit():
    assert checked("sar", "margin", math.inf) == math.inf
    assert checked("sar", "recover", -math.inf) == -math.inf
    for method, name in (("sar", "rho"), ("tent", "lr")):
        with pytest.raises(UserError, match="0 or more, not inf"):
            checked(method, name, math.inf)


def test_adapt_is_also_a_name_of_the_package(ready):
    network = ready("norm").network
    assert torch.equal(ttdg.adapt(network, "norm")(some_images()), adapt(network, "norm")(some_images()))


def test_wrong_names_and_values_are_refused_with_a_suggestion(ready):
    network = ready("tent").network
    with pytest.raises(UserError, match="did you mean 'tent'"):
        adapt(network, "tnet")
    with pytest.raises(UserError, match="has no option 'lrr'; did you mean 'lr'"):
        adapt(network, "tent", lrr=1)
    with pytest.raises(UserError, match=r"lr of 'tent' must be of type float, such as 0\.0001, not 'fast'"):
        adapt(network, "tent", lr="fast")
    with pytest.raises(
        UserError, match="option head of 'tent' must be one of softmax, sigmoid, not 'linear'"
    ):
        adapt(network, "tent", head="linear")
    assert adapt(network, "alpha-bn", alpha=1)


def test_a_number_of_numpy_is_a_number(ready):
    assert adapt(ready("tent").network, "tent", lr=np.logspace(-4, -3, 2)[1]).lr == 1e-3
    with pytest.raises(UserError, match="lr of 'tent' must be of type float"):
        adapt(ready("tent").network, "tent", lr=True)


CLAUSES = [
    clause for title, clause in globals().items()
    if title.startswith("test_") and list(inspect.signature(clause).parameters) in (["name"], ["name", "ready"])
    and "encode_and_decode" not in title  # the example does not need them
]  # fmt: skip


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_the_example_of_the_docs_keeps_the_contract(clause, ready, monkeypatch):
    """The first code block of docs/adding.md, unchanged."""
    text = (Path(__file__).parents[2] / "docs" / "adding.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    example: dict = {}
    exec(code[1], example)
    monkeypatch.setitem(METHODS, "my-method", example["METHOD"])
    clause(*("my-method", ready)[: len(inspect.signature(clause).parameters)])
