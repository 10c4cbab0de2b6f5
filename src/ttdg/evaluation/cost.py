"""The cost of answers: passes through the network, and peak memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ttdg.networks import Segmenter
from ttdg.networks.cuda_graph import count_replays


@dataclass
class Passes:
    """Numbers of forward and backward passes."""

    forwards: int = 0
    backwards: int = 0


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """Count every encoder call and every backward pass in this process, including those of teachers and copies."""
    passes = Passes()
    encode, backward, grad = Segmenter.encode, torch.autograd.backward, torch.autograd.grad

    def counting(verb: Any, name: str) -> Any:
        def count(*arguments: Any, **named: Any) -> Any:
            setattr(passes, name, getattr(passes, name) + 1)
            return verb(*arguments, **named)

        return count

    try:
        Segmenter.encode = counting(encode, "forwards")  # type: ignore[method-assign]
        torch.autograd.backward = counting(backward, "backwards")
        torch.autograd.grad = counting(grad, "backwards")
        with count_replays(passes):
            yield passes
    finally:
        Segmenter.encode = encode  # type: ignore[method-assign]
        torch.autograd.backward, torch.autograd.grad = backward, grad


def release(device: str) -> None:
    """Free cached GPU memory, because other workers share the GPU."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Reset the peak-memory counter of the GPU, or of this process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif (refs := Path("/proc/self/clear_refs")).exists():
        try:
            refs.write_text("5")
        except OSError:
            return  # some containers forbid it; the peak then covers the whole life of the process


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak`: bytes allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
