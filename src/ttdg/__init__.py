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
    from ttdg.adaptation import METHODS as METHODS
    from ttdg.adaptation import adapt as adapt
    from ttdg.checkpoints import load as load
    from ttdg.networks import NetworkSpec as NetworkSpec
    from ttdg.networks import Segmenter as Segmenter

__version__ = "0.1.0"

_HOME = {
    "METHODS": "ttdg.adaptation",
    "NetworkSpec": "ttdg.networks",
    "Segmenter": "ttdg.networks",
    "adapt": "ttdg.adaptation",
    "load": "ttdg.checkpoints",
}
__all__ = ["METHODS", "NetworkSpec", "Segmenter", "adapt", "load"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ttdg' has no attribute {name!r}")
