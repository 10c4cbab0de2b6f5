"""Asking a GPU without waiting for it.

To read a value off the device stops the host until all work before it is done, and then the device waits for the
host. A loop that asks "enough?" hears instead the answer to its question before: one round late, while the next round
is already queued.
"""

import torch
from jaxtyping import Bool
from torch import Tensor


class NonBlockingAll:
    """Is it yes to all? Answered at once on a CPU, for the questions before on a GPU, at first with no."""

    def __init__(self) -> None:
        self._earlier: tuple[Tensor, torch.cuda.Event | None] | None = None

    def __call__(self, questions: Bool[Tensor, "*any"]) -> bool:
        if questions.is_cpu:
            return bool(questions.all())
        earlier, self._earlier = self._earlier, _sent(questions)
        return earlier is not None and _arrived(*earlier)


def _sent(questions: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """On its way to the host, and the event of its arrival. Other devices than CUDA's are waited for after all."""
    if not questions.is_cuda:
        return questions, None
    answers = questions.to("cpu", non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return answers, event


def _arrived(answers: Tensor, event: torch.cuda.Event | None) -> bool:
    """Only here are they counted together: on the host it costs the device nothing."""
    if event is not None:
        event.synchronize()
    return bool(answers.all())
