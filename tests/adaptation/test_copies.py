"""Adapters are copied and pickled with all that they have learned."""

import copy
import pickle

import pytest
import torch

from ttdg.adaptation import METHODS, adapt, unusable
from ttdg.adaptation.gate import gate
from ttdg.adaptation.own_network import output
from ttdg.networks.batchnorm import modes
from ttdg.safety.policy import GatePolicy

LEARNED = {"universe": {"choice": "adapted"}}  # answers then show what was learned


def pickled(adapter):
    return pickle.loads(pickle.dumps(adapter))


HOW = pytest.mark.parametrize("how", [copy.deepcopy, pickled])


def batch(seed):
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) + 1


@HOW
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_copy_continues_as_its_original_and_neither_changes_the_other(name, how, ready):
    source = ready(name)
    original, alone = (source.quick(name, **LEARNED.get(name, {})) for _ in range(2))
    expected = [alone(batch(seed)) for seed in range(4)]
    assert torch.equal(original(batch(0)), expected[0])
    twin = how(original)
    assert type(twin) is type(original)
    for seed in (1, 2):
        assert torch.equal(twin(batch(seed)), expected[seed])
    assert torch.equal(original(batch(1)), expected[1])
    original.reset()
    original(batch(7))
    assert torch.equal(twin(batch(3)), expected[3])
    twin.reset()
    assert torch.equal(twin(batch(0)), expected[0])
    weights = source.network.state_dict()
    twin.reset()
    assert all(torch.equal(value, weights[key]) for key, value in twin.network.state_dict().items())


@HOW
@pytest.mark.parametrize("name", ["tent", "pass", "itta", "judge", "self-training"])
def test_averaged_answers_are_copied_too(name, how, ready):
    original = ready(name).quick(name, views="scales")
    original(batch(0))
    twin = how(original)
    assert torch.equal(twin(batch(1)), original(batch(1)))


@HOW
@pytest.mark.parametrize("name", ["tent", "pass", "itta"])
def test_a_method_behind_the_gate_is_copied_too(name, how, ready):
    source = ready(name)
    original = gate(source.quick(name), source, {"structure": (1,)}, GatePolicy(), memory=True)
    original(batch(0))
    twin = how(original)
    assert torch.equal(twin(batch(1)), original(batch(1)))
    assert twin.decision == original.decision


ACCEPT = GatePolicy(least_agreement=0.0, largest_growth=1e9, most_rejected=1.0, largest_change=1e9)
REMEMBERING = [name for name, method in METHODS.items() if method.memory and "judge" not in method.parts]


@pytest.mark.parametrize("name", REMEMBERING)
def test_after_an_undone_update_a_method_continues_from_the_accepted_state(name, ready):
    """The gate goes back to a copy."""
    source = ready(name)
    alone, method = source.quick(name), source.quick(name)
    gated = gate(method, source, {"structure": (1,)}, ACCEPT, memory=True)
    assert torch.equal(gated(batch(0)), alone(batch(0)))
    gated.tests.policy = GatePolicy(most_rejected=-1.0)
    gated(batch(1))
    assert gated.decision.update
    gated.tests.policy = ACCEPT
    method(batch(7))  # the adapter that was left changes nothing any more
    for seed in (2, 3):
        assert torch.equal(gated(batch(seed)), alone(batch(seed)))


@HOW
def test_an_adapter_of_a_users_network_is_copied_with_the_form_of_its_output(how, ready):
    original = adapt(ready("tent", labels=3).network, "tent", activation="sigmoid")
    original(batch(0))
    twin = how(original)
    assert torch.equal(twin(batch(1)), original(batch(1)))


def test_a_pickle_is_read_where_no_adapter_was_built_before(ready, monkeypatch):
    original = adapt(ready("tent").network, "tent", activation="softmax")
    original(batch(0))
    text = pickle.dumps(original)
    expected = original(batch(1))
    for module, table in ((unusable, "_KINDS"), (output, "_classes"), (modes, "_classes")):
        monkeypatch.setattr(module, table, {})
    assert torch.equal(pickle.loads(text)(batch(1)), expected)
