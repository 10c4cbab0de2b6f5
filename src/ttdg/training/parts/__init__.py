"""Parts that some methods need from source time, fitted to a trained, frozen network on source images.

- `EXTRAS`: the fit of each part, by the part's name.
- `fit_part`: fits one of them.
- `PartFit`: the arguments of a fit, and what the fits share.

Each fit is a pure function of its arguments, does not change the network, and returns a `Part` that is written beside
the checkpoint. Some published methods train the network together with the part. Here the network stays fixed, so that
every method starts from the same source weights; the module of each method describes what that costs.
"""

from ttdg.training.parts.fitting import STEPS, PartFit
from ttdg.training.parts.table import EXTRAS, fit_part

__all__ = ["EXTRAS", "STEPS", "PartFit", "fit_part"]
