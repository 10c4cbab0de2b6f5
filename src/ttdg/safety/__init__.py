"""Safety: how far a site is from the source, whether an answer is accepted, and a log of every decision.

This package measures and decides; it knows no adaptation method. `ttdg.adaptation.gate` puts its tests around a method.

* `SourceShadow`: a copy of the source network that describes every batch which it predicts.
* `Fingerprint`: the statistics of the source sites; `fit_fingerprint` makes them as the part "fingerprint".
* `measure_drift`: the distance of a site with a verdict, `Drift`; `NO_FINGERPRINT` is said where it cannot be measured.
"""

from ttdg.safety.descriptions import SourceShadow
from ttdg.safety.drift import CLASSES, NO_FINGERPRINT, Drift, measure_drift
from ttdg.safety.fingerprint import Fingerprint
from ttdg.safety.fit import count_steps, fit_fingerprint

__all__ = [
    "CLASSES", "NO_FINGERPRINT", "Drift", "Fingerprint", "SourceShadow", "count_steps", "fit_fingerprint",
    "measure_drift",
]  # fmt: skip
