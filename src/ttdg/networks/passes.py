"""Count the passes through networks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ttdg.networks.cuda_graph import count_replays
from ttdg.networks.segmenter import EncoderNetwork


@dataclass
class Passes:
    """Numbers of forward and backward passes."""

    forwards: int = 0
    backwards: int = 0


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """Count every encoder call and every backward pass in this process, including those of teachers and copies."""
    passes = Passes()
    encode, backward, grad = EncoderNetwork.encode, torch.autograd.backward, torch.autograd.grad

    def counting(verb: Any, name: str) -> Any:
        def count(*arguments: Any, **named: Any) -> Any:
            setattr(passes, name, getattr(passes, name) + 1)
            return verb(*arguments, **named)

        return count

    try:
        EncoderNetwork.encode = counting(encode, "forwards")  # type: ignore[method-assign]
        torch.autograd.backward = counting(backward, "backwards")
        torch.autograd.grad = counting(grad, "backwards")
        with count_replays(passes):
            yield passes
    finally:
        EncoderNetwork.encode = encode  # type: ignore[method-assign]
        torch.autograd.backward, torch.autograd.grad = backward, grad
