"""A hash of the package's source code."""

import hashlib
from functools import lru_cache
from pathlib import Path


@lru_cache(1)
def code_hash() -> str:
    """Return a hash of this package's source, which distinguishes records made by different code."""
    import ttdg

    root, digest = Path(ttdg.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
