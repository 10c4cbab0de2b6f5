"""Test-time adaptation: methods that adapt a network to unlabelled images while they predict them.

* `adapt`: builds an adapter, by the name of its method, around a copy of a network; `build_adapter`: the same, with the
  options as a mapping.
* `predict_site`: lets an adapter learn all images of a site and answer them, as `SiteAnswers`.
* `VIEW_SETS`, `effective_views`: the views over which the answers of any method can be averaged.
* `effective_statistics`: the BatchNorm statistics under a method that allows several.
* `required_parts`: the fitted parts that a method needs, or an error that tells how to fit them.
* `seed_all`: seeds every random generator that a method may use.
* `Trained`: what `adapt` accepts besides a network: a loaded checkpoint with fitted parts.
* `METHODS`: all methods by name, each a `Method`: the declaration of its behaviour and its options.
* `Adapter`: the interface of all adapters; `FrozenPredictor`, `SiteLearner`, `Resumable`, `SelfAssessing`, `Remarking`,
  `Exportable` and `Counting`: optional.
* `Assessment`: the predicted quality that a `SelfAssessing` adapter reports.
* `Fixed`, `GradientAdapter`: base classes of adapters without and with gradient updates.
* `Option`, `Range`: the documentation of one option, and its allowed numbers.
* `defaults`, `checked`, `allowed`: default options of a method, validation of a value, and the allowed values in words.
* `applies`, `check_applies`: whether a method can adapt a network of a task, segmentation or classification.
* `needs_tissues`: whether a method needs universe points that belong to tissues.
* `reconstructions`: the methods in a list whose authors published too little to reproduce them exactly.

Folders: `methods` holds one file for each published method, `universe` the methods of the universe paper, `judge` the
method that chooses among several predictions, `site_learning` what methods that learn a whole site share, and
`source_free` the published ones.
"""

from ttdg.adaptation.adapter import (
    Adapter,
    Assessment,
    Counting,
    Exportable,
    Fixed,
    FrozenPredictor,
    GradientAdapter,
    Method,
    Remarking,
    Resumable,
    SelfAssessing,
    SiteLearner,
)
from ttdg.adaptation.answer_views import effective_views
from ttdg.adaptation.build import Trained, adapt, build_adapter, required_parts, seed_all
from ttdg.adaptation.options import Option, Range
from ttdg.adaptation.registry import (
    METHODS,
    allowed,
    applies,
    check_applies,
    checked,
    defaults,
    needs_tissues,
    reconstructions,
)
from ttdg.adaptation.statistics_base import effective_statistics
from ttdg.adaptation.views import VIEW_SETS
from ttdg.adaptation.whole_site import SiteAnswers, predict_site

__all__ = [
    "METHODS", "VIEW_SETS", "Adapter", "Assessment", "Counting", "Exportable", "Fixed", "FrozenPredictor",
    "GradientAdapter", "Method", "Option", "Range", "Remarking", "Resumable", "SelfAssessing", "SiteAnswers",
    "SiteLearner", "Trained",
    "adapt", "allowed", "applies", "build_adapter", "check_applies", "checked", "defaults", "effective_statistics",
    "effective_views", "needs_tissues",
    "predict_site", "reconstructions", "required_parts", "seed_all",
]  # fmt: skip
