"""Run a function of GPU tensors as a CUDA graph: capture it once, then replay it with a single launch.

At a batch size of four, Python takes longer to launch a network's kernels than the kernels take to run. Replaying a
CUDA graph launches all of them at once. A replay reads and writes the memory that was used during capture. Therefore
all state that outlives a call must be updated in place, and the captured function must not synchronise with the device
or branch on values of tensors.

The function is called directly, without a graph, on tensors that are not on a GPU, inside `disabled()`, and if the
environment variable TTDG_GRAPHS is 0.
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

from ttdg.errors import TtdgWarning

Function = Callable[..., Any]  # maps tensors to a tensor or to a tuple of tensors

WARM_UP_CALLS = 3  # direct calls before capture: libraries select kernels and optimisers allocate their state
MAX_GRAPHS = (
    4  # graphs per runner. Each holds its own memory; a stream has one shape, and another in its last batch
)

_disabled_depth: list[None] = []  # one entry for each active `disabled()`
_counters: list[Any] = []  # objects given to `count_replays`
_capture_lock = threading.RLock()  # a process may capture only one graph at a time


def enabled() -> bool:
    """True unless CUDA graphs are switched off by `disabled()` or by TTDG_GRAPHS=0."""
    return not _disabled_depth and os.environ.get("TTDG_GRAPHS", "1") != "0"


@contextmanager
def disabled() -> Iterator[None]:
    """Context in which no graph is captured or replayed."""
    _disabled_depth.append(None)
    try:
        yield
    finally:
        _disabled_depth.pop()


@contextmanager
def count_replays(counts: Any) -> Iterator[None]:
    """Context in which counters of Python code also count replays, during which no Python code runs.

    The attributes of `counts` are numbers that the captured function increments. Each replay adds the same increments.
    """
    _counters.append(counts)
    try:
        yield
    finally:
        _counters[:] = [other for other in _counters if other is not counts]


class GraphRunner:
    """Calls a function directly at first, then captures it as a CUDA graph and replays the graph.

    There is one graph for each combination of input shapes, strides, dtypes and devices, torch flags, and `state()`.
    Call a runner always with the same function. The returned tensors are copies that belong to the caller.

    If capture fails, the runner warns once and calls the function directly from then on. The failed capture may have
    interrupted the function, so the function must tolerate leftovers such as gradients.

    Args:
        state: called before every call. Returns a hashable description of everything that the function depends on
            besides its inputs and values in memory. A new description leads to a new capture; None forbids graphs.
    """

    def __init__(self, state: Callable[[], Hashable] = tuple) -> None:
        self.state = state
        # For each key the captured graph, or the number of warm-up calls so far. Least recently used first.
        self._entries: OrderedDict[Hashable, int | _CapturedGraph] = OrderedDict()
        self._failed: set[Hashable] = set()

    def __call__(self, function: Function, *inputs: Tensor) -> Any:
        """The result of `function(*inputs)`."""
        if not enabled() or not _can_capture(inputs) or (state := self.state()) is None:
            return function(*inputs)
        key = (state, *map(_tensor_key, inputs), *_torch_flags(), *map(id, _counters))
        if key in self._failed:
            return function(*inputs)
        entry = self._entries.pop(key, 0)
        if isinstance(entry, int) and entry < WARM_UP_CALLS:
            with _capture_lock:
                outputs = _run_on_side_stream(function, inputs)
            self._store(key, entry + 1)
            return outputs
        if isinstance(entry, int):
            captured = _try_capture(function, inputs)
            if captured is None:
                self._failed.add(key)
                return function(*inputs)
            self._store(key, captured)
            return captured.replay(inputs)
        self._store(key, entry)
        entry.add_counts()
        return entry.replay(inputs)

    def _store(self, key: Hashable, entry: "int | _CapturedGraph") -> None:
        self._entries[key] = entry
        while len(self._entries) > MAX_GRAPHS:
            self._entries.popitem(last=False)

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without graphs, since a graph is bound to the memory it was captured with."""
        return {"state": self.state, "_entries": OrderedDict(), "_failed": set()}


@dataclass(frozen=True)
class _CapturedGraph:
    graph: Any
    inputs: tuple[Tensor, ...]  # memory that a replay reads
    outputs: Tensor | tuple[Tensor, ...]  # memory that a replay writes
    increments: tuple[dict[str, int], ...]  # for each counter, what one call adds

    def add_counts(self) -> None:
        """Count one replay. The first replay needs no count: capture ran no kernel, but ran the Python code."""
        for counts, increments in zip(_counters, self.increments, strict=True):
            vars(counts).update({name: getattr(counts, name) + value for name, value in increments.items()})

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for memory, value in zip(self.inputs, inputs, strict=True):
            memory.copy_(value)
        self.graph.replay()
        if isinstance(self.outputs, Tensor):
            return self.outputs.clone()
        return tuple(output.clone() for output in self.outputs)


def _try_capture(function: Function, inputs: Sequence[Tensor]) -> _CapturedGraph | None:
    """The captured graph, or None with a warning if the function cannot be captured."""
    memory = tuple(torch.empty_like(x).copy_(x) for x in inputs)
    before = [dict(vars(counts)) for counts in _counters]
    try:
        with _capture_lock, _garbage_collection_paused():
            graph, outputs = _capture(function, memory)
        if not all(isinstance(output, Tensor) for output in _as_tuple(outputs)):
            raise TypeError("the function must return tensors only")
    except Exception as error:  # noqa: BLE001 whatever the reason, the function can be called directly
        for counts, values in zip(_counters, before, strict=True):
            vars(counts).update(values)
        warnings.warn(
            "runs without a CUDA graph, which is slower (set TTDG_GRAPHS=0 to switch graphs and this warning off): "
            f"{_first_error(error)}",
            TtdgWarning,
            stacklevel=3,
        )
        return None
    increments = tuple(
        {name: value - old[name] for name, value in vars(counts).items()}
        for counts, old in zip(_counters, before, strict=True)
    )
    return _CapturedGraph(graph, memory, outputs, increments)


def _first_error(error: BaseException) -> BaseException:
    """The first error of a chain: ending an interrupted capture raises another error."""
    return error if error.__context__ is None else _first_error(error.__context__)


def _can_capture(inputs: Sequence[Tensor]) -> bool:
    """True if all inputs are on one GPU and need no gradient, outside autocast and other captures.

    Autocast is excluded because its cached casts of the weights would have been made before the capture.
    """
    return (
        all(x.is_cuda and x.device == inputs[0].device and not x.requires_grad for x in inputs)
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
    )


def _tensor_key(x: Tensor) -> Hashable:
    return x.shape, x.stride(), x.dtype, x.device


def _torch_flags() -> tuple[bool, ...]:
    flags = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return *flags, torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.enabled


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@lru_cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for warm-up and capture. It is the same: autograd accumulates on the stream of the first gradient."""
    return torch.cuda.Stream(device)


def _run_on_side_stream(function: Function, inputs: Sequence[Tensor]) -> Any:
    """Call the function on the side stream, ordered after earlier and before later work of the current stream."""
    device = inputs[0].device
    current, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            outputs = function(*inputs)
    finally:
        current.wait_stream(side)
    for x in inputs:
        x.record_stream(side)
    for x in _as_tuple(outputs):
        if isinstance(x, Tensor):
            x.record_stream(current)
    return outputs


def _capture(function: Function, inputs: Sequence[Tensor]) -> tuple[Any, Any]:
    """The graph, and the tensors that its replays will write. Other threads may use the GPU meanwhile."""
    device = inputs[0].device
    stream, generator = torch.cuda.current_stream(device), torch.cuda.default_generators[device.index]
    random_state, graph = generator.clone_state(), torch.cuda.CUDAGraph()
    try:
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, stream=_side_stream(device), capture_error_mode="thread_local"),
        ):
            outputs = function(*inputs)
    except Exception:  # a failed capture leaves the current stream and the generator in capture state
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(random_state)
        raise
    return graph, outputs


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection, which could free another graph during a capture and thereby break it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
