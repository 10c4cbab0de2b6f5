"""Leaving torch's global random generators as they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore torch's global random generators at the end.

    A module that is made draws weights, also if those of a part replace them at once.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield
