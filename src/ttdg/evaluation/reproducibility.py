"""Seeds, and a hash of the package's source code."""

import hashlib
import random
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed every random generator that a method may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


@lru_cache(1)
def code_hash() -> str:
    """Return a hash of this package's source, which distinguishes records made by different code."""
    import ttdg

    root, digest = Path(ttdg.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
