"""Work of many small GPU programs, recorded once and then started by one call.

At a batch of four a GPU waits for Python, which takes longer to ask for a network's programs than they run. A CUDA
graph asks for all of them at once. It repeats what was recorded on the same memory: whatever outlives a call must be
changed in place, and nothing between the first program and the last may wait for the device or depend on its values.

Off a GPU, inside `off()` and with TTDG_GRAPHS=0 in the environment the work is simply called.
"""

import gc
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Work = Callable[..., Any]  # tensors to a tensor, or to a tuple of them

WARM_UP = 3  # calls before the recording: libraries choose their programs and optimisers make their state
KEPT = 4  # recordings, each with memory of its own: a stream of images has one shape, and a last batch

_off: list[None] = []
_watching: list[Any] = []
_one_at_a_time = threading.RLock()  # a process may record but one graph at once


def enabled() -> bool:
    return not _off and os.environ.get("TTDG_GRAPHS", "1") != "0"


@contextmanager
def disabled() -> Iterator[None]:
    """Nothing is recorded or replayed in here."""
    _off.append(None)
    try:
        yield
    finally:
        _off.pop()


@contextmanager
def count_replays(counts: Any) -> Iterator[None]:
    """`counts`, whose attributes are numbers that Python code raises, also counts in a replay what it did in the
    recording, where that code ran for the last time."""
    _watching.append(counts)
    try:
        yield
    finally:
        _watching[:] = [other for other in _watching if other is not counts]


class Replay:
    """Calls `work`, always the same: as it is at first, then recorded, for each kind of input.

    `state` is asked before every call for what the recording depends on beyond its inputs and the values in memory; a
    new answer means a new recording, None that there must be none. What comes back belongs to the caller. Work that
    cannot be recorded is called as it is ever after, with one warning; it may have been cut off half-way, and must
    not mind what that left behind on the Python side, gradients for instance.
    """

    def __init__(self, state: Callable[[], Hashable] = tuple) -> None:
        self.state = state
        self._kept: OrderedDict[Hashable, int | _Recording] = OrderedDict()  # or the calls so far
        self._failed: set[Hashable] = set()

    def __call__(self, work: Work, *inputs: Tensor) -> Any:
        if not enabled() or not _recordable(inputs) or (state := self.state()) is None:
            return work(*inputs)
        key = (state, *map(_kind, inputs), *_mode(), *map(id, _watching))
        if key in self._failed:
            return work(*inputs)
        known = self._kept.pop(key, 0)
        if isinstance(known, int) and known < WARM_UP:
            with _one_at_a_time:
                outputs = _aside(work, inputs)
            self._keep(key, known + 1)
            return outputs
        if isinstance(known, int):
            recorded = _recorded(work, inputs)
            if recorded is None:
                self._failed.add(key)
                return work(*inputs)
            self._keep(key, recorded)
            return recorded.first(inputs)
        self._keep(key, known)
        return known(inputs)

    def _keep(self, key: Hashable, value: "int | _Recording") -> None:
        self._kept[key] = value
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def __getstate__(self) -> dict[str, Any]:
        """Copies record anew: a graph is bound to the memory it was recorded on."""
        return {"state": self.state, "_kept": OrderedDict(), "_failed": set()}


@dataclass(frozen=True)
class _Recording:
    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: Tensor | tuple[Tensor, ...]
    counted: tuple[dict[str, int], ...]  # by each watching counter

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        for counts, more in zip(_watching, self.counted, strict=True):
            vars(counts).update({name: getattr(counts, name) + value for name, value in more.items()})
        return self.first(inputs)

    def first(self, inputs: Sequence[Tensor]) -> Any:
        """Recording ran nothing, but counted what the first replay does."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        if isinstance(self.outputs, Tensor):
            return self.outputs.clone()
        return tuple(output.clone() for output in self.outputs)


def _recorded(work: Work, inputs: Sequence[Tensor]) -> _Recording | None:
    """None, and a warning, where the work cannot be recorded."""
    own = tuple(torch.empty_like(x).copy_(x) for x in inputs)
    before = [dict(vars(counts)) for counts in _watching]
    try:
        with _one_at_a_time, _no_collection():
            graph, outputs = _record(work, own)
        if not all(isinstance(output, Tensor) for output in _each(outputs)):
            raise TypeError("only tensors can be given back")
    except Exception as error:  # noqa: BLE001 whatever it is, the work can be called as it is
        for counts, values in zip(_watching, before, strict=True):
            vars(counts).update(values)
        warnings.warn(
            f"runs unrecorded, waiting for Python (TTDG_GRAPHS=0 does so without this warning): {_cause(error)}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    counted = tuple(
        {name: value - old[name] for name, value in vars(counts).items()}
        for counts, old in zip(_watching, before, strict=True)
    )
    return _Recording(graph, own, outputs, counted)


def _cause(error: BaseException) -> BaseException:
    """The first error: to end a recording that was cut off is an error too."""
    return error if error.__context__ is None else _cause(error.__context__)


def _recordable(inputs: Sequence[Tensor]) -> bool:
    """On one GPU, with no gradient to pass on, not while somebody else records, and without an autocast around, whose
    cast weights would be kept from before the recording."""
    return (
        all(x.is_cuda and x.device == inputs[0].device and not x.requires_grad for x in inputs)
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
    )


def _kind(x: Tensor) -> Hashable:
    return x.shape, x.stride(), x.dtype, x.device


def _mode() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.enabled,
    )


def _each(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@lru_cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """One stream for warming up and recording: gradients are summed on the stream they were first made on."""
    return torch.cuda.Stream(device)


def _aside(work: Work, inputs: Sequence[Tensor]) -> Any:
    """The work on the side stream, between what came before and what comes after."""
    device = inputs[0].device
    here, side = torch.cuda.current_stream(device), _side(device)
    side.wait_stream(here)
    try:
        with torch.cuda.stream(side):
            outputs = work(*inputs)
    finally:
        here.wait_stream(side)
    for x in inputs:
        x.record_stream(side)
    for x in _each(outputs):
        if isinstance(x, Tensor):
            x.record_stream(here)
    return outputs


def _record(work: Work, inputs: Sequence[Tensor]) -> tuple[Any, Any]:
    """The graph, and the tensors its answers will lie in. Other threads may go on using the GPU meanwhile."""
    device = inputs[0].device
    here, random = torch.cuda.current_stream(device), torch.cuda.default_generators[device.index]
    numbers, graph = random.clone_state(), torch.cuda.CUDAGraph()
    try:
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=_side(device), capture_error_mode="thread_local"),
        ):
            outputs = work(*inputs)
    except Exception:  # which leaves the stream, and the generator, as if the recording still went on
        torch.cuda.set_stream(here)
        random.graphsafe_set_state(numbers)
        raise
    return graph, outputs


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection, which could free another graph in the middle of a recording."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
