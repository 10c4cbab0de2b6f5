"""Options of the methods: what each one does, where its default comes from, and which values are allowed."""

import math
from dataclasses import dataclass, replace

from ttdg.arguments import LARGEST_SEED


@dataclass(frozen=True)
class Range:
    """The numbers that an option accepts: an interval, and its infinite ends where `endless` is true."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the interval excludes `low`
    endless: bool = False  # an infinite value is allowed and means "no limit"

    def __contains__(self, value: float | int) -> bool:
        if abs(value) == math.inf:  # `math.isinf` fails for a whole number that no float can hold
            return self.endless and value in (self.low, self.high)
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "any number"
        low, high = (f"{bound:.10g}" for bound in (self.low, self.high))  # seeds have ten digits
        if self.high < math.inf:
            return f"{'above' if self.above else 'between'} {low} and {'at most ' * self.above}{high}"
        return f"above {low}" if self.above else f"{low} or more"


COUNT, SHARE, WEIGHT = Range(1.0), Range(0.0, 1.0), Range(0.0)
POSITIVE, SEEDS = Range(0.0, above=True), Range(-float(LARGEST_SEED), float(LARGEST_SEED))


@dataclass(frozen=True)
class Option:
    """Documentation of one keyword of a method's factory. The command `ttdg methods` prints the three fields."""

    text: str  # what the option does, in one line
    origin: str  # where the default comes from: the paper, the authors' code, or this project with its reason
    range: Range | None = None  # allowed numbers; None for text, choices and switches

    def with_origin(self, origin: str) -> "Option":
        """Return a copy with another `origin`."""
        return replace(self, origin=origin)


# Options that several methods share. Each method states the origin of its own learning rate and number of steps.
LR = Option("learning rate of the optimiser", "", WEIGHT)
STEPS = Option("gradient steps on each batch", "", COUNT)
HEAD = Option(
    "how logits become probabilities: softmax over the channels, or sigmoid of each channel",
    "this project: its networks predict classes that exclude each other",
)
NOISE = Option(
    "noise of the photometric views: standard deviation up to 0.05 (released) or its square root (strong)",
    "GraTa's code, whose library takes the drawn variance as the standard deviation",
)
SEED = Option(
    "seed of the method's random numbers", "this project: a fixed seed makes runs repeatable", SEEDS
)
