"""The half-finished run, in a folder beside the checkpoint-to-be."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ttdg.errors import UserError
from ttdg.files import atomic_file


class State:
    """`identity` is what must be equal for a run to be continued: the recipe and the data.

    A kill shall cost no more than `seconds`, however slow the steps are.
    """

    def __init__(self, out: Path, identity: Mapping[str, Any], seconds: float) -> None:
        self.folder, self.identity = out.with_name(out.name + ".partial"), identity
        self.file = self.folder / "state.pt"
        self.seconds, self.saved = seconds, time.monotonic()

    def due(self) -> bool:
        """Is the last save too long ago? The host's clock alone is asked."""
        return time.monotonic() - self.saved >= self.seconds

    def save(self, network: nn.Module, optimiser: Any, step: int) -> None:
        values = {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
        with atomic_file(self.file) as temporary:
            torch.save(values | {"identity": self.identity}, temporary)
        self.saved = time.monotonic()

    def resume(self, network: nn.Module, optimiser: Any) -> int:
        """The step to go on from: 0, or that of the saved state."""
        if not self.file.exists():
            return 0
        values = torch.load(self.file, map_location="cpu", weights_only=True)
        if values["identity"] != self.identity:
            raise UserError(
                f"{self.folder} holds a half-finished training with another recipe or other data; "
                "remove that folder to start anew, or choose another --out"
            )
        network.load_state_dict(values["network"])
        optimiser.load_state_dict(values["optimiser"])
        return int(values["step"])

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
