"""Test-time adaptation of segmentation models to a new hospital.

    import ttdg

    model = ttdg.load("demo")
    adapter = ttdg.adapt(model, "tent")
    logits = adapter(images)          # adapts to these images, then answers them
    adapter.reset()                   # the source model again, bit for bit

Names are imported when they are first used, so that `import ttdg` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttdg.adapt import METHODS as METHODS
    from ttdg.networks import NetworkSpec as NetworkSpec
    from ttdg.networks import Segmenter as Segmenter
    from ttdg.training.checkpoint import load as load

__version__ = "0.1.0"

_HOME = {
    "METHODS": "ttdg.adapt",
    "NetworkSpec": "ttdg.networks",
    "Segmenter": "ttdg.networks",
    "load": "ttdg.training.checkpoint",
}
__all__ = ["METHODS", "NetworkSpec", "Segmenter", "adapt", "load"]


def __getattr__(name: str) -> Any:
    if name == "adapt":
        return importlib.import_module("ttdg.adapt")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ttdg' has no attribute {name!r}")
