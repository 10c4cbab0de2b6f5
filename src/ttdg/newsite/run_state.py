"""The saved state of an unfinished run: what the adapter has learned, in `OUT/state/`."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ttdg.adaptation import Resumable
from ttdg.checkpoints import content_hash
from ttdg.data.unlabelled import NewBatch
from ttdg.errors import UserError
from ttdg.files import atomic_file
from ttdg.newsite.journal import Journal, answer_key

SECONDS = 60.0  # least time between two saves of the online stream


class RunState:
    """A file with the state of an adapter and a key of the images that led to it.

    Runs with another model, method, option or batch size use another file. A file that was made from other images, or
    that cannot be read, is ignored.

    Args:
        out: The output folder of the run.
        run_key: Hash of everything but the images that answers depend on.
        adapter: The adapter whose state is saved and loaded.
    """

    def __init__(self, out: Path, run_key: str, adapter: Resumable) -> None:
        self.path, self.adapter = out / "state" / f"{run_key}.safetensors", adapter
        self._last = time.monotonic()

    def save(self, seen: str, batches: int = 0) -> None:
        """Write the state. `seen` is the key of the images that the adapter has seen, in `batches` batches."""
        tensors = {name: value.contiguous() for name, value in self.adapter.state().items()}
        with atomic_file(self.path) as temporary:
            about = {"seen": seen, "batches": str(batches)}
            save_file(tensors, temporary, metadata={**about, "sha256": _state_hash(tensors, about)})
        self._last = time.monotonic()

    def save_if_due(self, seen: str, batches: int) -> None:
        """Write the state if the last save, or the start of the run, is at least `SECONDS` ago."""
        if time.monotonic() - self._last >= SECONDS:
            self.save(seen, batches)

    def load(self, seen: str) -> bool:
        """Load the state into the adapter if it was saved for the images of `seen`; return whether it was.

        A damaged file counts as absent.
        """
        try:
            with safe_open(self.path, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("seen") != seen:
                    return False
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.get("sha256") != _state_hash(tensors, about):
                return False
            self.adapter.load_state(tensors)
        except (OSError, SafetensorError, UserError):
            return False
        return True

    def exists(self) -> bool:
        """Return whether a state was saved by an earlier call."""
        return self.path.exists()

    def resume_online(self, site: Iterator[NewBatch], key: str, journal: Journal) -> int:
        """Load the state if it continues the answers of the journal.

        Args:
            site: The batches of the run from its start; only those that the state has seen are read.
            key: The key of the run before its first batch.
            journal: The answers of earlier calls.

        Returns:
            The number of batches that the adapter need not process again; 0 if the state does not fit.
        """
        batches = self._batches()
        usual = (batch for batch in site if not batch.unusual)
        for number, batch in enumerate(usual if batches else (), 1):
            key = answer_key(key, *(image.sha256 for image in batch.files))
            if not {(image.file, key) for image in batch.files} <= journal.kept.items():
                return 0
            if number == batches:
                return batches if self.load(key) else 0
        return 0

    def _batches(self) -> int:
        """Return the number of batches that led to the saved state; 0 without a readable state."""
        with suppress(OSError, SafetensorError, ValueError), safe_open(self.path, framework="pt") as file:
            return int((file.metadata() or {}).get("batches", 0))
        return 0

    def remove(self) -> None:
        """Delete the state, and what a killed call left of an unfinished save."""
        for path in self.path.parent.glob(f"*{self.path.stem}*"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder is absent, or holds the state of another run
            self.path.parent.rmdir()


def _state_hash(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Return a hash of the tensors, and of the images and batches that they stand for."""
    facts = [about.get("seen"), about.get("batches"), content_hash(tensors)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
