"""The saved state of an unfinished training run, in the folder `OUT.partial` beside the checkpoint."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttdg.errors import UserError
from ttdg.files import atomic_file


class State:
    """Saves and restores a run.

    `identity` (the recipe and the data) must be equal for a run to be continued. `seconds` is the longest time between
    two saves, and so the most work that an interruption can lose.
    """

    def __init__(self, out: Path, identity: Mapping[str, Any], seconds: float) -> None:
        self.folder, self.identity = out.with_name(out.name + ".partial"), identity
        self.file = self.folder / "state.pt"
        self.seconds, self.saved = seconds, time.monotonic()

    def due(self) -> bool:
        """True if `seconds` have passed since the last save; never waits for the device."""
        return time.monotonic() - self.saved >= self.seconds

    def save(self, network: nn.Module, optimiser: Any, step: int, average: Any = None) -> None:
        """Write the state after `step`; `average` is the moving average of the weights, if there is one."""
        values = {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
        if average is not None:
            values["average"] = average.state_dict()
        values["random"] = _random_states()
        with atomic_file(self.file) as temporary:
            torch.save(values | {"identity": self.identity}, temporary)
        self.saved = time.monotonic()

    def resume(self, network: nn.Module, optimiser: Any, average: Any = None) -> int:
        """Load the saved state, if there is one, and return its step; 0 without a saved state."""
        if not self.file.exists():
            return 0
        try:
            values = torch.load(self.file, map_location="cpu", weights_only=True)
            same = values["identity"] == self.identity
        except Exception as error:  # noqa: BLE001  # a damaged pickle can raise almost anything
            raise self._damaged(error) from None
        if not same:
            raise UserError(
                f"{self.folder} holds a half-finished training with another recipe or other data; "
                "remove that folder to start again, or train into another folder"
            )
        try:
            network.load_state_dict(values["network"])
            optimiser.load_state_dict(values["optimiser"])
            if average is not None:
                average.load_state_dict(values["average"])
            _restore_random(values.get("random", []))
            return int(values["step"])
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, IndexError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UserError:
        return UserError(
            f"{self.file} is damaged ({type(error).__name__}); remove {self.folder} to start the training again"
        )


def _random_states() -> list[Tensor]:
    """States of torch's generators, from which DropEdge draws: that of the CPU, and of the GPU if there is one."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])


def _restore_random(states: list[Tensor]) -> None:
    for state, restore in zip(states, (torch.set_rng_state, torch.cuda.set_rng_state), strict=False):
        restore(state)
