"""Source training: the network, its morphology prior, and the parts that some methods need from source time.

- `Recipe`: the settings of a training run.
- `make_fabric`: the device, precision and processes of a run.
- `train`, `Progress`: the training loop, and the events it reports.
- `ttdg.training.prior_fit`: fits a morphology prior to a trained network.
- `ttdg.training.parts`: fits the parts of DeY-Net, NC-TTT, TASD-R and ITTA to a trained network.

Names are imported at first use, so that reading a `Recipe` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ttdg.training.loop import Progress as Progress
    from ttdg.training.loop import make_fabric as make_fabric
    from ttdg.training.loop import train as train
    from ttdg.training.recipe import Recipe as Recipe

_MODULES = {
    "Progress": "loop",
    "Recipe": "recipe",
    "make_fabric": "loop",
    "train": "loop",
}
__all__ = ["Progress", "Recipe", "make_fabric", "train"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"ttdg.training.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ttdg.training' has no attribute {name!r}")
