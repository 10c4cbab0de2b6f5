"""Options of methods: what each one does, where its default comes from, and which values are allowed."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    low: float
    high: float = math.inf
    above: bool = False  # `low` itself is out
    endless: bool = False  # infinity is in: no bound at all

    def __contains__(self, value: float | int) -> bool:
        if self.endless and value == math.inf:
            return True
        return (
            math.isfinite(value)
            and (self.low < value if self.above else self.low <= value)
            and value <= self.high
        )

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"{'above' if self.above else 'between'} {self.low:g} and {'at most ' * self.above}{self.high:g}"
        return f"above {self.low:g}" if self.above else f"{self.low:g} or more"


COUNT, SHARE, WEIGHT = Range(1.0), Range(0.0, 1.0), Range(0.0)
RANGES = {
    "lr": WEIGHT, "steps": COUNT, "views": COUNT, "members": COUNT, "capacity": COUNT, "neighbours": COUNT,
    "pixels": COUNT, "samples": COUNT, "count": COUNT, "copies": WEIGHT, "remember": WEIGHT,
    "alpha": SHARE, "momentum": SHARE, "restore": SHARE, "threshold": SHARE, "decay": SHARE, "least": SHARE,
    "dropout": Range(0.0, 0.99), "size": Range(0.0, 1.0, above=True),
    "rho": WEIGHT, "consistency": WEIGHT, "labelling": WEIGHT, "trust": WEIGHT, "edge_weight": WEIGHT,
    "margin": Range(0.0, endless=True), "tau": Range(0.0, above=True), "temperature": Range(0.0, above=True),
    "warm": Range(0.0, above=True),
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of a method. `ttdg methods NAME` and the documentation print these three fields."""

    text: str  # what it does, in one line
    origin: str  # where the default comes from: the paper, the authors' code, or a choice of this project
    range: Range | None = None  # allowed numbers; None for text, choices and switches


LR = Option("learning rate", "see `origin` of the method", WEIGHT)
STEPS = Option("gradient steps on each batch", "see `origin` of the method", COUNT)
HEAD = Option("how logits become probabilities: over classes, or for each channel", "this project")
SEED = Option("seed of the method's random draws", "this project")
