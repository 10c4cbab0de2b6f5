"""Capture and replay without a GPU: a fake graph calls the function again on the captured tensors."""

import copy
import warnings

import pytest
import torch

from ttdg.networks import cuda_graph
from ttdg.networks.cuda_graph import MAX_GRAPHS, WARM_UP_CALLS, GraphRunner


class Graph:
    """Replays as a CUDA graph does: reads the captured inputs and writes the captured outputs."""

    def __init__(self, work, inputs, outputs):
        self.work, self.inputs, self.outputs = work, inputs, outputs

    def replay(self):
        for old, new in zip(
            cuda_graph._as_tuple(self.outputs), cuda_graph._as_tuple(self.work(*self.inputs)), strict=True
        ):
            old.copy_(new)


@pytest.fixture
def events(monkeypatch):
    """The list of "warm-up", "capture" and "replay" events; every tensor can be captured."""
    events = []

    class Observed(Graph):
        def replay(self):
            events.append("replay")
            super().replay()

    def warm_up(work, inputs):
        events.append("warm-up")
        return work(*inputs)

    def capture(work, inputs):
        events.append("capture")
        outputs = work(*(torch.full_like(x, torch.nan) for x in inputs))  # capture computes nothing
        return Observed(work, inputs, outputs), outputs

    monkeypatch.setattr(cuda_graph, "_can_capture", lambda inputs: True)
    monkeypatch.setattr(cuda_graph, "_run_on_side_stream", warm_up)
    monkeypatch.setattr(cuda_graph, "_capture", capture)
    return events


def double(x):
    return 2 * x


def test_the_first_calls_warm_up_the_next_captures_and_later_calls_replay(events):
    call = GraphRunner()
    for value in range(WARM_UP_CALLS + 3):
        assert torch.equal(call(double, torch.tensor([float(value)])), torch.tensor([2.0 * value]))
    assert events == ["warm-up"] * WARM_UP_CALLS + ["capture", "replay", "replay", "replay"]


def test_outputs_are_copies_and_inputs_are_unchanged(events):
    call = GraphRunner()
    given = [torch.tensor([float(value)]) for value in range(8)]
    answers = [call(lambda x: (x + 1, x - 1), x) for x in given]
    assert [x.item() for x in given] == list(range(8))
    assert [(a.item(), b.item()) for a, b in answers] == [(v + 1, v - 1) for v in range(8)]


def test_every_kind_of_input_and_every_state_has_its_own_graph(events):
    state = ["a"]
    call = GraphRunner(lambda: state[0])
    for _ in range(WARM_UP_CALLS + 2):
        call(double, torch.zeros(2))
    for other in (torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(4)[::2]):
        del events[:]
        call(double, other)
        assert events == ["warm-up"]
    state[0] = "b"
    del events[:]
    call(double, torch.zeros(2))
    assert events == ["warm-up"]
    with torch.no_grad():
        del events[:]
        call(double, torch.zeros(2))
        assert events == ["warm-up"]


def test_the_least_recently_used_graph_is_dropped(events):
    call = GraphRunner()
    for size in range(1, MAX_GRAPHS + 2):
        for _ in range(WARM_UP_CALLS + 1):
            call(double, torch.zeros(size))
    del events[:]
    call(double, torch.zeros(2))
    call(double, torch.zeros(1))
    assert events == ["replay", "warm-up"]


def test_a_state_of_none_disabled_and_the_environment_variable_give_direct_calls(events, monkeypatch):
    for _ in range(9):
        GraphRunner(lambda: None)(double, torch.zeros(2))
    call = GraphRunner()
    with cuda_graph.disabled():
        for _ in range(9):
            call(double, torch.zeros(2))
    monkeypatch.setenv("TTDG_GRAPHS", "0")
    for _ in range(9):
        call(double, torch.zeros(2))
    assert events == []


def test_cpu_tensors_are_never_captured():
    call = GraphRunner()
    for _ in range(9):
        assert torch.equal(call(double, torch.ones(2)), torch.full((2,), 2.0))
    assert not call._entries


def test_a_function_that_cannot_be_captured_is_called_directly_with_one_warning(events, monkeypatch):
    def refuse(work, inputs):
        work(*inputs)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "_capture", refuse)
    call = GraphRunner()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [call(double, torch.tensor([float(value)])).item() for value in range(WARM_UP_CALLS + 4)]
    assert answers == [2.0 * value for value in range(WARM_UP_CALLS + 4)]
    assert [str(warning.message) for warning in caught if "CUDA graph" in str(warning.message)] == [
        "runs without a CUDA graph, which is slower (set TTDG_GRAPHS=0 to switch graphs and this warning off): "
        "operation not permitted when stream is capturing"
    ]
    call(double, torch.zeros(5))
    assert events[-1] == "warm-up"  # another shape is tried again


class Counts:
    def __init__(self):
        self.calls = 0


@pytest.mark.parametrize("fails", [False, True])
def test_counts_equal_those_of_direct_calls(events, monkeypatch, fails):
    counts, counting = Counts(), True

    def work(x):
        counts.calls += counting
        return 2 * x

    capture = cuda_graph._capture

    def counted_once(work, inputs):
        graph, outputs = capture(work, inputs)
        if fails:
            raise RuntimeError("no")
        graph.work = double  # a graph runs no Python
        return graph, outputs

    monkeypatch.setattr(cuda_graph, "_capture", counted_once)
    call = GraphRunner()
    for _ in range(WARM_UP_CALLS + 2):
        call(work, torch.zeros(1)) if not fails else None
    counts.calls = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with cuda_graph.count_replays(counts):
            for _ in range(WARM_UP_CALLS + 5):
                call(work, torch.zeros(1))
    assert counts.calls == WARM_UP_CALLS + 5
    assert not cuda_graph._counters


def test_a_copy_has_no_graphs(events):
    call = GraphRunner(Counts)
    for _ in range(WARM_UP_CALLS + 2):
        call(double, torch.zeros(2))
    assert not copy.deepcopy(call)._entries


def test_garbage_collection_is_paused_during_capture():
    import gc

    with cuda_graph._garbage_collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
