import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from ttdg import adaptation
from ttdg.adaptation import Resumable
from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.data.transforms import normalise
from ttdg.errors import UserError

adapt = partial(adaptation.adapt, activation="softmax")  # the labels of the network exclude each other

torch.manual_seed(0)
NETWORK = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)
).eval()
QUICK = {"steps": 1, "draw": 3, "lr": 1e-3}


def a_batch(seed, how="imagenet", count=2, size=32):
    images = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return 5 * images - 1 if how == "affine" else normalise(images, how)


def run(adapter, seeds, how):
    return [adapter(a_batch(seed, how)) for seed in seeds]


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@given(
    before=st.integers(0, 3),
    capacity=st.integers(1, 8),
    how=st.sampled_from(["minmax", "imagenet", "affine"]),
    seed=st.integers(0, 9),
)
@settings(settings.get_profile("costly"))
def test_a_run_continued_from_a_saved_state_equals_the_uninterrupted_run(before, capacity, how, seed):
    options = {**QUICK, "capacity": capacity, "seed": seed}
    whole, first = (adapt(NETWORK, "self-training", **options) for _ in range(2))
    expected = run(whole, range(before + 2), how)
    run(first, range(before), how)
    second = adapt(NETWORK, "self-training", **options)
    second.load_state(load(save(first.state())))
    found = run(second, range(before, before + 2), how)
    assert all(torch.equal(a, b) for a, b in zip(expected[before:], found, strict=True))
    assert same(whole.state(), second.state())


def test_a_learned_folder_is_saved_and_answers_as_before():
    adapter = adapt(NETWORK, "self-training", folder_steps=2, draw=3, lr=1e-3)
    assert isinstance(adapter, Resumable)
    adapter.learn(a_batch(seed) for seed in range(3))
    other = adapt(NETWORK, "self-training", folder_steps=2, draw=3, lr=1e-3)
    other.load_state(adapter.state())
    assert len(other.memory) == 6
    assert torch.equal(adapter.predict_frozen(a_batch(9)), other.predict_frozen(a_batch(9)))
    assert torch.equal(adapter(a_batch(9)), other(a_batch(9)))


def test_a_saved_state_does_not_change_while_the_adapter_learns():
    adapter = adapt(NETWORK, "self-training", **QUICK)
    adapter(a_batch(0))
    state = adapter.state()
    before = copy.deepcopy(state)
    adapter(a_batch(1))
    assert same(state, before)
    assert not same(adapter.state(), before)


def test_asking_for_the_state_does_not_change_the_run():
    one, two = (adapt(NETWORK, "self-training", **QUICK) for _ in range(2))
    for seed in range(2):
        one.state()
        assert torch.equal(one(a_batch(seed)), two(a_batch(seed)))


def test_reset_after_loading_restores_the_source():
    one, two = (adapt(NETWORK, "self-training", **QUICK) for _ in range(2))
    fresh = two.state()
    one(a_batch(0))
    two.load_state(one.state())
    two.reset()
    assert same(two.state(), fresh)


@pytest.mark.parametrize("fault", ["missing weights", "missing memory", "another network"])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(fault):
    adapter = adapt(NETWORK, "self-training", **QUICK)
    source = (
        NETWORK if fault != "another network" else nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    )
    saved = adapt(source, "self-training", **QUICK)
    saved(a_batch(0))
    state, before = saved.state(), adapter.state()
    if fault != "another network":
        prefix = "memory.counts" if fault == "missing memory" else "teacher."
        state = {name: value for name, value in state.items() if not name.startswith(prefix)}
    with pytest.raises(UserError, match="saved with another network"):
        adapter.load_state(state)
    assert same(adapter.state(), before)


@given(counts=st.lists(st.integers(1, 4), max_size=5), capacity=st.none() | st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_a_loaded_memory_draws_and_replaces_as_the_saved_one(counts, capacity):
    memory, other = ImageMemory(capacity, 1), ImageMemory(3, 2)
    for number, count in enumerate(counts):
        memory.add(a_batch(number, count=count, size=4))
    other.load_state(copy.deepcopy(memory.state()), torch.device("cpu"))
    for each in (memory, other):
        each.add(a_batch(50, count=3, size=4))
    assert torch.equal(memory.draw(5), other.draw(5))
    assert same(memory.state(), other.state())
