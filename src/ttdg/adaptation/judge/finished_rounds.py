"""Finished rounds of a fit, kept in files, so that an interrupted fit goes on after them."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ttdg.files import atomic_file

# Returns what a round yields, given its name and the function that computes it. The values are plain: tensors, numbers
# and texts, and dicts and lists of them.
Keep = Callable[[str, Callable[[], Any]], Any]
HASH = 64  # characters of a SHA-256


def keep_nothing(name: str, compute: Callable[[], Any]) -> Any:
    """Compute a round and write no file."""
    return compute()


class FinishedRounds:
    """The finished rounds of one fit, in a folder of which nothing is left after `sweep`.

    Rounds of another fit, which an `identity` tells apart, are removed. A damaged file counts as absent.

    Args:
        folder: Where the files are kept.
        identity: JSON values of everything that the rounds depend on.
        device: Device of the tensors of a round that was finished before.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], device: torch.device) -> None:
        self.root, self.device = folder, device
        self.folder = folder / hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        for other in folder.glob("*"):
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def __len__(self) -> int:
        """Return the number of files."""
        return len([path for path in self.folder.glob("*.pt") if not path.name.startswith(".")])

    def __call__(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what a round yields, from its file if it was finished before."""
        path = self.folder / f"{name}.pt"
        content = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(content[HASH:]).hexdigest().encode() == content[:HASH]:
            return torch.load(io.BytesIO(content[HASH:]), map_location=self.device, weights_only=True)
        values, buffer = compute(), io.BytesIO()
        torch.save(values, buffer)
        data = buffer.getvalue()
        with atomic_file(path) as temporary:
            temporary.write_bytes(hashlib.sha256(data).hexdigest().encode() + data)
        return values

    def sweep(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.root, ignore_errors=True)
