"""Saving and loading the tensors that a learner changes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from ttdg.adaptation.site_learning.image_memory import ImageMemory
from ttdg.errors import UserError

OTHER = "it was saved with another network, another method or another version; start a new one"


def adam_tensors(
    optimiser: Optimizer, names: Sequence[str], parameters: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the moments and step counts of Adam by the names of their parameters.

    Before the first step they are created as zeros, from which Adam starts as if it had none.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in zip(names, parameters, strict=True):
        state = optimiser.state[parameter]
        if not state:
            on_device = any(group.get("fused") or group.get("capturable") for group in optimiser.param_groups)
            state["step"] = torch.zeros((), device=parameter.device if on_device else "cpu")
            state["exp_avg"], state["exp_avg_sq"] = (
                torch.zeros_like(parameter, requires_grad=False) for _ in range(2)
            )
        found |= {f"{kind}.{name}": state[kind] for kind in ("step", "exp_avg", "exp_avg_sq")}
    return found


def copies_on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}


@torch.no_grad()
def load_tensors(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], others: Iterable[str] = ()
) -> None:
    """Copy a saved state into the tensors of the same names.

    The state must also have the names in `others`, of any shape. Further names in the state are ignored.

    Raises:
        UserError: if a name is missing or a tensor has another shape. Then nothing is copied.
    """
    for name in (*tensors, *others):
        if name not in state:
            raise UserError(f"the saved state has no {name!r}: {OTHER}")
        if name in tensors and state[name].shape != tensors[name].shape:
            raise UserError(f"{name!r} has the shape {tuple(state[name].shape)} in the saved state: {OTHER}")
    for name, value in tensors.items():
        value.copy_(state[name])


class SavesState(ABC):
    """A learner whose state can be saved: the tensors that learning changes, its memory, and a generator of views."""

    memory: ImageMemory
    generator: Generator
    device: torch.device

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """The tensors that learning changes in place, and the state of the generator as "views"."""

    def state(self) -> dict[str, Tensor]:
        """Copies of all state on the CPU: networks, optimiser, memory and random generators."""
        stored = {f"memory.{name}": value for name, value in self.memory.state().items()}
        return copies_on_cpu({**self._tensors(), **stored})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state of the same network and options."""
        tensors = self._tensors()
        load_tensors(tensors, state, ["memory.counts", "memory.generator"])
        self.generator.set_state(tensors["views"])
        stored = {n.removeprefix("memory."): v for n, v in state.items() if n.startswith("memory.")}
        self.memory.load_state(stored, self.device)
