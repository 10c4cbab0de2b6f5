"""Test-time adaptation: methods that adapt a network to unlabelled images while they predict them.

* `adapt`: builds an adapter, by the name of its method, around a copy of a network.
* `required_parts`: the fitted parts that a method needs, or an error that tells how to fit them.
* `seed_all`: seeds every random generator that a method may use.
* `Trained`: what `adapt` accepts besides a network: a loaded checkpoint with fitted parts.
* `METHODS`: all methods by name, each a `Method`: the declaration of its behaviour and its options.
* `Adapter`: the interface of all adapters; `FrozenPredictor`, `SiteLearner`, `Resumable`, `SelfAssessing`, `Counting`:
  optional.
* `Assessment`: the predicted quality that a `SelfAssessing` adapter reports.
* `Fixed`, `GradientAdapter`: base classes of adapters without and with gradient updates.
* `Option`, `Range`: the documentation of one option, and its allowed numbers.
* `defaults`, `checked`, `allowed`: default options of a method, validation of a value, and the allowed values in words.
* `reconstructions`: the methods in a list whose authors published too little to reproduce them exactly.

Folders: `methods` holds one file for each published method, `universe` the methods of the universe paper, `judge` the
method that chooses among several predictions, and `site_learning` the methods that learn a whole site.
"""

from ttdg.adaptation.adapter import (
    Adapter,
    Assessment,
    Counting,
    Fixed,
    FrozenPredictor,
    GradientAdapter,
    Method,
    Resumable,
    SelfAssessing,
    SiteLearner,
)
from ttdg.adaptation.build import Trained, adapt, required_parts, seed_all
from ttdg.adaptation.options import Option, Range
from ttdg.adaptation.registry import METHODS, allowed, checked, defaults, reconstructions

__all__ = [
    "METHODS", "Adapter", "Assessment", "Counting", "Fixed", "FrozenPredictor", "GradientAdapter", "Method", "Option",
    "Range", "Resumable", "SelfAssessing", "SiteLearner", "Trained", "adapt", "allowed", "checked", "defaults",
    "reconstructions", "required_parts", "seed_all",
]  # fmt: skip
