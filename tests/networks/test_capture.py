import copy
import gc
import weakref
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import SGD, Adam, AdamW, RMSprop

from ttdg.adaptation import adapt
from ttdg.networks import batchnorm, cuda_graph
from ttdg.networks.capture import CaptureGuard, make_capturable, reset_optimiser, zero_state_is_fresh

adapt = partial(adapt, activation="softmax")


def a_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)).eval()


OPTIMISERS = {
    "adam": Adam,
    "adam, other betas": partial(Adam, betas=(0.5, 0.9), amsgrad=True),
    "adamw": AdamW,
    "sgd": SGD,
    "momentum": partial(SGD, momentum=0.9),
    "nesterov": partial(SGD, momentum=0.9, nesterov=True),
    "damped": partial(SGD, momentum=0.9, dampening=0.5),
    "rmsprop": RMSprop,
}


def steps(optimiser, parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=generator)
        optimiser.step()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_reset_optimiser_continues_like_a_new_one_bit_for_bit(name, fused):
    if fused and name == "rmsprop":
        return  # has no fused form
    options = {"fused": True} if fused else {}
    start = [torch.randn(5), torch.randn(2, 3)]
    used, new = ([x.clone().requires_grad_() for x in start] for _ in range(2))
    optimiser = OPTIMISERS[name](used, lr=0.1, **options)
    steps(optimiser, used, seed=1)
    optimiser.param_groups[0]["lr"] = 5.0
    kept = [x for state in optimiser.state.values() for x in state.values() if x is not None]
    with torch.no_grad():
        for p, value in zip(used, start, strict=True):
            p.copy_(value)
    reset_optimiser(optimiser)
    steps(optimiser, used, seed=2)
    steps(OPTIMISERS[name](new, lr=0.1, **options), new, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(used, new, strict=True))
    now = [x for state in optimiser.state.values() for x in state.values() if x is not None]
    assert (name in ("damped", "rmsprop")) is not zero_state_is_fresh(optimiser)
    if zero_state_is_fresh(optimiser):
        assert all(a is b for a, b in zip(kept, now, strict=True))


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_a_capturable_optimiser_steps_like_any_other(name):
    start = torch.randn(5)
    a, b = start.clone().requires_grad_(), start.clone().requires_grad_()
    prepared, plain = (OPTIMISERS[name]([p], lr=0.1, fused=True) for p in (a, b))
    assert make_capturable(prepared)
    steps(prepared, [a], 3)
    steps(plain, [b], 3)
    assert torch.equal(a, b)


def test_a_first_step_that_is_skipped_leaves_no_trace():
    p = torch.ones(4, requires_grad=True)
    optimiser = SGD([p], lr=0.1, momentum=0.9, fused=True)
    make_capturable(optimiser)
    p.grad, optimiser.found_inf = torch.full((4,), torch.nan), torch.ones(())
    optimiser.step()
    assert torch.equal(p, torch.ones(4))
    assert not optimiser.state[p]["momentum_buffer"].any()


def test_the_guard_detects_another_mode_other_weights_and_hooks():
    network = a_network()
    batchnorm.use(network, batchnorm.MixMode(0.1))
    guard = CaptureGuard(network)
    first = guard()
    assert guard() == first
    batchnorm.use(network, batchnorm.MixMode(0.2))
    second = guard()
    network[1].mode = batchnorm.MixMode(0.1)
    third = guard()
    network.train()
    fourth = guard()
    network.double()
    fifth = guard()
    assert len({first, second, third, fourth, fifth}) == 5
    handle = network[2].register_forward_hook(lambda *_: None)
    assert guard() is None
    handle.remove()
    assert guard() == fifth
    assert CaptureGuard(network, possible=False)() is None


@contextmanager
def restored(work):
    """Restore the state of the adapter whose method is captured: capture must compute nothing."""
    owner = getattr(work, "__self__", None)
    network, optimiser = getattr(owner, "network", None), getattr(owner, "optimiser", None)
    states = [] if network is None else [network.state_dict()]
    states += [] if optimiser is None else list(optimiser.state.values())
    before = copy.deepcopy(states)
    yield
    with torch.no_grad():
        for state, old in zip(states, before, strict=True):
            for name, value in old.items():
                if value is not None:
                    state[name].copy_(value)


@pytest.fixture
def graphs(monkeypatch):
    """Fake CUDA graphs; the list of replays.

    A replay repeats the torch calls on the captured tensors and with the captured Python numbers, and runs no Python.
    """
    replays = []

    def capture(work, inputs):
        with restored(work):
            calls = make_fx(lambda *given: work(*given))(*inputs)
        with restored(work):
            outputs = calls(*inputs)

        class Graph:
            def replay(self):
                replays.append(inputs[0].shape)
                for old, new in zip(
                    cuda_graph._as_tuple(outputs), cuda_graph._as_tuple(calls(*inputs)), strict=True
                ):
                    old.copy_(new)

        return Graph(), outputs

    monkeypatch.setattr(cuda_graph, "_can_capture", lambda inputs: True)
    monkeypatch.setattr(cuda_graph, "_run_on_side_stream", lambda work, inputs: work(*inputs))
    monkeypatch.setattr(cuda_graph, "_capture", capture)
    return replays


def test_the_fake_graph_repeats_the_numbers_of_its_capture(graphs):
    call, rate = cuda_graph.GraphRunner(), [1.0]

    def work(x):
        return x * rate[0]

    for number in range(6):
        rate[0] = float(number)
        answer = call(work, torch.ones(1))
    assert answer == cuda_graph.WARM_UP_CALLS, "the number of the captured call"
    assert len(graphs) == 6 - cuda_graph.WARM_UP_CALLS


def as_on_a_gpu(adapter):
    """The adapter with a fused optimiser, whose steps can be captured and which skips steps with NaN by itself."""
    if hasattr(adapter, "_fused"):
        adapter._fused = True
        adapter.optimiser = type(adapter.optimiser)(
            adapter.parameters, lr=adapter.optimiser.defaults["lr"], fused=True
        )
        adapter._replay.state.possible = make_capturable(adapter.optimiser)
    return adapter


METHODS = {
    "source": {},
    "norm": {},
    "alpha-bn": {},
    "tent": {"lr": 0.05},
    "vptta": {"size": 0.2, "neighbours": 4},
}


@pytest.mark.parametrize("method", METHODS)
def test_replays_equal_direct_calls_over_resets_other_shapes_and_batches_of_nan(graphs, method):
    recorded, plain = (as_on_a_gpu(adapt(a_network(), method, **METHODS[method])) for _ in range(2))
    torch.manual_seed(1)
    for number in range(16):
        x = torch.randn(3 if number == 6 else 2, 3, 16, 16)
        if number == 8:
            x = torch.full_like(x, torch.nan)
        if number == 10:
            recorded.reset()
            plain.reset()
        answer = recorded(x)
        with cuda_graph.disabled():
            expected = plain(x)
        assert torch.equal(answer, expected), number
        assert not answer.requires_grad
        if hasattr(plain, "loss"):
            assert torch.equal(recorded.loss, plain.loss)
    passes = 2 if method == "vptta" else 1  # the batch of another shape and that of NaN are not replayed
    assert len(graphs) == passes * (16 - 2 - cuda_graph.WARM_UP_CALLS)


def test_a_new_batch_norm_mode_applies_to_the_next_call(graphs):
    adapter, x = adapt(a_network(), "norm"), torch.randn(2, 3, 8, 8) + 3
    for _ in range(6):
        before = adapter(x)
    batchnorm.use(adapter.network, batchnorm.EVAL)
    assert torch.equal(adapter(x), adapt(a_network(), "source")(x))
    assert not torch.equal(adapter(x), before)


def test_a_hook_runs_at_every_pass(graphs):
    adapter, x, seen = adapt(a_network(), "norm"), torch.randn(2, 3, 8, 8), []
    for _ in range(6):
        adapter(x)
    adapter.network[0].register_forward_hook(lambda *_: seen.append(1))
    for _ in range(6):
        adapter(x)
    assert len(seen) == 6


@pytest.mark.parametrize("method", ["norm", "tent"])
def test_an_adapter_without_references_is_freed(graphs, method):
    adapter = adapt(a_network(), method)
    for _ in range(6):
        adapter(torch.randn(2, 3, 8, 8))
    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(adapter._replay)
        del adapter
        assert gone() is None
    finally:
        gc.enable()
