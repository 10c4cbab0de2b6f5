"""Test-time adaptation: `METHODS` lists the methods, `adapt` builds one around a copy of a network."""

from ttdg.adaptation.adapter import (
    Adapter,
    Assessment,
    Counting,
    Fixed,
    FrozenPredictor,
    GradientAdapter,
    Method,
    SelfAssessing,
)
from ttdg.adaptation.build import Trained, adapt
from ttdg.adaptation.options import Option, Range
from ttdg.adaptation.registry import METHODS, allowed, checked, defaults, reconstructions

__all__ = [
    "METHODS", "Adapter", "Assessment", "Counting", "Fixed", "FrozenPredictor", "GradientAdapter", "Method", "Option",
    "Range", "SelfAssessing", "Trained", "adapt", "allowed", "checked", "defaults", "reconstructions",
]  # fmt: skip
