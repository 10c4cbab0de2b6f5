"""Test-time adaptation of segmentation models to a new hospital.

    import ttdg

    model = ttdg.load("demo")
    adapter = ttdg.adapt(model, "judge")
    logits = adapter(images)          # adapts to this batch and returns its logits
    adapter.reset()                   # restores the source model exactly

* `adapt`: wraps a network or model in a test-time adaptation method.
* `predict_site`: lets an adapter learn all images of a new site and answer them.
* `fit`: fits what `judge` and `universe` need to any segmentation network, from labelled source images.
* `export`: writes a network as ONNX, or as a program of PyTorch.
* `load`: reads a checkpoint folder, or an included model by name.
* `METHODS`: all methods by name.
* `Segmenter`, `Classifier`, `NetworkSpec`: the networks for segmentation and classification, and their settings.

Names are imported at first use, so that `import ttdg` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttdg.adaptation import METHODS, adapt, predict_site
    from ttdg.checkpoints import load
    from ttdg.foreign import export, fit
    from ttdg.networks import Classifier, NetworkSpec, Segmenter

__version__ = "0.1.0"

_HOME = {
    "Classifier": "ttdg.networks",
    "METHODS": "ttdg.adaptation",
    "NetworkSpec": "ttdg.networks",
    "Segmenter": "ttdg.networks",
    "adapt": "ttdg.adaptation",
    "export": "ttdg.foreign",
    "fit": "ttdg.foreign",
    "load": "ttdg.checkpoints",
    "predict_site": "ttdg.adaptation",
}
__all__ = [
    "METHODS",
    "Classifier",
    "NetworkSpec",
    "Segmenter",
    "adapt",
    "export",
    "fit",
    "load",
    "predict_site",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ttdg' has no attribute {name!r}")
