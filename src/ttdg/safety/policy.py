"""The policy of the gate: the bounds of its tests, read from a yaml file."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ttdg.errors import UserError, suggestion

BOUNDS: dict[str, tuple[float, float]] = {
    "least_gain": (-1.0, 1.0),
    "close": (0.0, 1.0),
    "averaged": (0.0, 1.0),
    "caution": (0.0, 10.0),
    "least_agreement": (0.0, 1.0),
    "largest_growth": (1.0, 1000.0),
    "most_rejected": (0.0, 1.0),
    "largest_change": (0.0, 1000.0),
}


@dataclass(frozen=True)
class GatePolicy:
    """Bounds of the tests of the gate; an answer or an update that breaks one is rolled back."""

    least_gain: float = 0.0  # expected gain in Dice over the source, plus `caution` standard deviations
    close: float = 0.95  # Dice with the source's answer from which no loss is expected
    averaged: float = 0.7  # Dice with the source's answer above which their mean answers; see `GateTests`
    caution: float = 0.0  # standard deviations over the judge's members
    least_agreement: float = 0.5  # Dice with the source's answer, where the model has no judge
    largest_growth: float = 20.0  # factor by which the area of a region may grow or shrink
    most_rejected: float = (
        0.5  # share of rejected answers of a batch, or of a site, beyond which its update is undone
    )
    largest_change: float = 1.0  # norm of the change of the weights, as a share of the norm of the weights

    def to_dict(self) -> dict[str, float]:
        """Return the bounds by name."""
        return {name: float(value) for name, value in asdict(self).items()}


def read_policy(path: Path) -> GatePolicy:
    """Read a policy from a yaml file. Bounds that it does not name keep their defaults."""
    import yaml

    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(
            f"cannot read the policy {path} ({type(error).__name__}); give a yaml file of bounds"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"the policy {path} holds no bounds; write lines such as `least_gain: 0.0`")
    known = {field.name for field in fields(GatePolicy)}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"the policy {path} has an unknown bound {name!r}{suggestion(str(name), known)}")
        low, high = BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise UserError(
                f"{name} in the policy {path} must be a number from {low:g} to {high:g}, not {value!r}; correct it"
            )
    return GatePolicy(**{name: float(value) for name, value in values.items()})
