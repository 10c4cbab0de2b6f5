"""Stopping criteria for loops on a GPU, without synchronising host and device.

Reading a tensor's value blocks the host until the GPU has finished all queued work, and leaves the GPU idle afterwards.
A loop that tests for convergence reads the result of its previous test instead: it stops one test late, and the next
iterations are already queued.
"""

import torch
from jaxtyping import Bool
from torch import Tensor


class NonBlockingAll:
    """Non-blocking `all()`: on a GPU each call returns the previous call's result, at first False.

    On a CPU the result is that of the current call.
    """

    def __init__(self) -> None:
        self._previous: tuple[Tensor, torch.cuda.Event | None] | None = None

    def __call__(self, condition: Bool[Tensor, "*any"]) -> bool:
        """True if all entries of `condition` are true (on a GPU: of the previous call's `condition`)."""
        if condition.is_cpu:
            return bool(condition.all())
        previous, self._previous = self._previous, _sent(condition)
        return previous is not None and _arrived(*previous)


def _sent(condition: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start the copy to the host; returns the copy and its completion event.

    Devices other than CUDA have no event: reading their tensors blocks.
    """
    if not condition.is_cuda:
        return condition, None
    copy = condition.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copy, event


def _arrived(copy: Tensor, event: torch.cuda.Event | None) -> bool:
    """`copy.all()`, once the copy is complete. Reduced on the host, to save the GPU one kernel."""
    if event is not None:
        event.synchronize()
    return bool(copy.all())
