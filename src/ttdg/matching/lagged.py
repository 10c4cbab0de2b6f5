"""Asking a GPU without waiting for it.

To read a value off the device stops the host until all work before it is done, and then the device waits for the
host. A loop that asks "enough?" hears instead the answer to its question before: one round late, while the next round
is already queued.
"""

import torch
from jaxtyping import Bool
from torch import Tensor


class Lagged:
    """Answers to yes-or-no questions: at once on a CPU, those to the question before on a GPU, at first no."""

    def __init__(self) -> None:
        self._earlier: tuple[Tensor, torch.cuda.Event | None] | None = None

    def __call__(self, question: Bool[Tensor, ""]) -> bool:
        if question.is_cpu:
            return bool(question)
        earlier, self._earlier = self._earlier, _sent(question)
        return earlier is not None and _arrived(*earlier)


def _sent(question: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """On its way to the host, and the event of its arrival. Other devices than CUDA's are waited for after all."""
    if not question.is_cuda:
        return question, None
    answer = question.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return answer, event


def _arrived(answer: Tensor, event: torch.cuda.Event | None) -> bool:
    if event is not None:
        event.synchronize()
    return bool(answer)
