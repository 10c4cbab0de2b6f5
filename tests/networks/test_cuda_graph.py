"""Recording and replaying without a GPU: a stand-in for the graph runs the work again on the tensors it was given."""

import copy
import warnings

import pytest
import torch

from ttdg.networks import cuda_graph
from ttdg.networks.cuda_graph import KEPT, WARM_UP, Replay


class Graph:
    """Replays as a CUDA graph does: from the same inputs' memory into the same outputs' memory."""

    def __init__(self, work, inputs, outputs):
        self.work, self.inputs, self.outputs = work, inputs, outputs

    def replay(self):
        for old, new in zip(
            cuda_graph._each(self.outputs), cuda_graph._each(self.work(*self.inputs)), strict=True
        ):
            old.copy_(new)


@pytest.fixture
def events(monkeypatch):
    """The order of "aside", "record" and "replay"; every tensor counts as recordable."""
    seen = []

    class Noted(Graph):
        def replay(self):
            seen.append("replay")
            super().replay()

    def aside(work, inputs):
        seen.append("aside")
        return work(*inputs)

    def record(work, inputs):
        seen.append("record")
        outputs = work(*(torch.full_like(x, torch.nan) for x in inputs))  # recording computes nothing
        return Noted(work, inputs, outputs), outputs

    monkeypatch.setattr(cuda_graph, "_recordable", lambda inputs: True)
    monkeypatch.setattr(cuda_graph, "_aside", aside)
    monkeypatch.setattr(cuda_graph, "_record", record)
    return seen


def double(x):
    return 2 * x


def test_the_first_calls_warm_up_the_next_records_and_all_others_replay(events):
    call = Replay()
    for value in range(WARM_UP + 3):
        assert torch.equal(call(double, torch.tensor([float(value)])), torch.tensor([2.0 * value]))
    assert events == ["aside"] * WARM_UP + ["record", "replay", "replay", "replay"]


def test_answers_belong_to_the_caller_and_inputs_are_left_alone(events):
    call = Replay()
    given = [torch.tensor([float(value)]) for value in range(8)]
    answers = [call(lambda x: (x + 1, x - 1), x) for x in given]
    assert [x.item() for x in given] == list(range(8))
    assert [(a.item(), b.item()) for a, b in answers] == [(v + 1, v - 1) for v in range(8)]


def test_every_kind_of_input_and_every_state_has_its_own_recording(events):
    state = ["a"]
    call = Replay(lambda: state[0])
    for _ in range(WARM_UP + 2):
        call(double, torch.zeros(2))
    for other in (torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(4)[::2]):
        del events[:]
        call(double, other)
        assert events == ["aside"]
    state[0] = "b"
    del events[:]
    call(double, torch.zeros(2))
    assert events == ["aside"]
    with torch.no_grad():
        del events[:]
        call(double, torch.zeros(2))
        assert events == ["aside"]


def test_the_recordings_longest_unused_are_let_go(events):
    call = Replay()
    for size in range(1, KEPT + 2):
        for _ in range(WARM_UP + 1):
            call(double, torch.zeros(size))
    del events[:]
    call(double, torch.zeros(2))
    call(double, torch.zeros(1))
    assert events == ["replay", "aside"]


def test_no_state_switched_off_or_in_the_environment_means_plain_calls(events, monkeypatch):
    for _ in range(9):
        Replay(lambda: None)(double, torch.zeros(2))
    call = Replay()
    with cuda_graph.disabled():
        for _ in range(9):
            call(double, torch.zeros(2))
    monkeypatch.setenv("TTDG_GRAPHS", "0")
    for _ in range(9):
        call(double, torch.zeros(2))
    assert events == []


def test_tensors_of_the_cpu_are_never_recorded():
    call = Replay()
    for _ in range(9):
        assert torch.equal(call(double, torch.ones(2)), torch.full((2,), 2.0))
    assert not call._kept


def test_work_that_cannot_be_recorded_is_called_ever_after_with_one_warning(events, monkeypatch):
    def refuse(work, inputs):
        work(*inputs)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "_record", refuse)
    call = Replay()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answers = [call(double, torch.tensor([float(value)])).item() for value in range(WARM_UP + 4)]
    assert answers == [2.0 * value for value in range(WARM_UP + 4)]
    assert [str(warning.message) for warning in said if "unrecorded" in str(warning.message)] == [
        "runs unrecorded, waiting for Python (TTDG_GRAPHS=0 does so without this warning): "
        "operation not permitted when stream is capturing"
    ]
    call(double, torch.zeros(5))
    assert events[-1] == "aside"  # another kind gets its own chance


class Counts:
    def __init__(self):
        self.calls = 0


@pytest.mark.parametrize("fails", [False, True])
def test_counts_are_those_of_plain_calls(events, monkeypatch, fails):
    counts, counting = Counts(), True

    def work(x):
        counts.calls += counting
        return 2 * x

    record = cuda_graph._record

    def counted_once(work, inputs):
        graph, outputs = record(work, inputs)
        if fails:
            raise RuntimeError("no")
        graph.work = double  # a graph runs no Python
        return graph, outputs

    monkeypatch.setattr(cuda_graph, "_record", counted_once)
    call = Replay()
    for _ in range(WARM_UP + 2):
        call(work, torch.zeros(1)) if not fails else None
    counts.calls = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with cuda_graph.count_replays(counts):
            for _ in range(WARM_UP + 5):
                call(work, torch.zeros(1))
    assert counts.calls == WARM_UP + 5
    assert not cuda_graph._watching


def test_a_copy_records_anew(events):
    call = Replay(Counts)
    for _ in range(WARM_UP + 2):
        call(double, torch.zeros(2))
    assert not copy.deepcopy(call)._kept


def test_garbage_is_not_collected_while_recording():
    import gc

    with cuda_graph._no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
