"""A benchmark says what the masks mean: labels, how grey values encode them, which regions are scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import UInt8

from ttdg.data.schema import MAX_LABELS, BenchmarkSpec, Normalisation, ThresholdSpec, validated
from ttdg.errors import UserError, suggestion
from ttdg.types import Regions

UNKNOWN = MAX_LABELS  # in an encoding's table: a grey value that stands for no label


@dataclass(frozen=True)
class Exact:
    """Each grey value stands for one label (by index); any other value is an error."""

    values: Mapping[int, int]

    def table(self) -> UInt8[np.ndarray, "256"]:
        table = np.full(256, UNKNOWN, np.uint8)
        table[list(self.values)] = list(self.values.values())
        return table

    def greys(self, labels: int) -> UInt8[np.ndarray, "c"]:
        """The first grey value that stands for each label."""
        first = {label: value for value, label in reversed(list(self.values.items()))}
        return np.array([first.get(label, 0) for label in range(labels)], np.uint8)

    def to_dict(self, labels: tuple[str, ...]) -> dict[str, Any]:
        return {str(value): labels[label] for value, label in self.values.items()}


@dataclass(frozen=True)
class Threshold:
    """Grey values above `threshold` stand for one label, the rest for another; so soft edges are no error."""

    threshold: int
    above: int
    below: int

    def table(self) -> UInt8[np.ndarray, "256"]:
        return np.where(np.arange(256) > self.threshold, self.above, self.below).astype(np.uint8)

    def greys(self, labels: int) -> UInt8[np.ndarray, "c"]:
        """White for the label above the threshold, black for the one below."""
        return np.where(np.arange(labels) == self.above, 255, 0).astype(np.uint8)

    def to_dict(self, labels: tuple[str, ...]) -> dict[str, Any]:
        return {"threshold": self.threshold, "above": labels[self.above], "below": labels[self.below]}


@dataclass(frozen=True)
class Benchmark:
    """A label is an index into `labels`; 0 is the background. The network sees `size` × `size` pixels."""

    name: str
    labels: tuple[str, ...]
    encoding: Exact | Threshold
    regions: Regions
    normalisation: Normalisation
    size: int

    def encode(self, mask: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
        """The labels of a mask's raw grey values, read-only."""
        # bytes.translate is three times as fast as indexing a table with an array of bytes.
        labels = np.frombuffer(mask.tobytes().translate(self._table), np.uint8).reshape(mask.shape)
        if labels.max(initial=0) == UNKNOWN:
            raise UserError(self._unknown(np.unique(mask[labels == UNKNOWN]).tolist()))
        return labels

    def decode(self, labels: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
        """The grey values a mask of these labels is written with: the inverse of `encode`."""
        return self.encoding.greys(len(self.labels))[labels]

    @cached_property
    def _table(self) -> bytes:
        return self.encoding.table().tobytes()

    def _unknown(self, values: list[int]) -> str:
        shown = ", ".join(map(str, values[:8])) + (", …" if len(values) > 8 else "")
        known = ", ".join(f"{value} = {label}" for value, label in self.encoding.to_dict(self.labels).items())
        return (
            f"the mask holds values that benchmark {self.name!r} does not know: {shown} (it knows {known}); "
            f"correct the mask, or `mask:` in the benchmark's yaml file"
        )

    def to_dict(self) -> dict[str, Any]:
        """What the yaml file says; survives JSON, whose keys are strings."""
        regions = {name: [self.labels[label] for label in labels] for name, labels in self.regions.items()}
        return {
            "name": self.name,
            "labels": list(self.labels),
            "mask": self.encoding.to_dict(self.labels),
            "regions": regions,
            "normalisation": self.normalisation,
            "size": self.size,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "benchmark") -> "Benchmark":
        """The inverse of `to_dict`; `source` names the file in the error that a bad field gets."""
        spec = validated(fields, source)
        index = {label: number for number, label in enumerate(spec.labels)}
        encoding: Exact | Threshold
        if isinstance(mask := spec.mask, ThresholdSpec):
            encoding = Threshold(mask.threshold, index[mask.above], index[mask.below])
        else:
            encoding = Exact({value: index[label] for value, label in mask.items()})
        regions = {name: tuple(index[label] for label in labels) for name, labels in spec.regions.items()}
        return cls(spec.name, tuple(spec.labels), encoding, regions, spec.normalisation, spec.size)


def builtin_benchmarks() -> tuple[str, ...]:
    files = resources.files("ttdg.data").joinpath("benchmarks").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_benchmark(spec: str | Path | None, root: Path | None = None) -> Benchmark:
    """A built-in benchmark by name, one described in a yaml file, or (None) that of `root/benchmark.yaml`."""
    if spec is None:
        return _from_file((root or Path()) / "benchmark.yaml")
    builtin = builtin_benchmarks()
    if str(spec) in builtin:
        file = resources.files("ttdg.data").joinpath("benchmarks", f"{spec}.yaml")
        return _parse(file.read_text(encoding="utf-8"), f"{spec}.yaml")
    if Path(spec).suffix in (".yaml", ".yml"):
        return _from_file(Path(spec))
    raise UserError(f"unknown benchmark {str(spec)!r}{suggestion(str(spec), builtin)}; or give a yaml file")


def _from_file(path: Path) -> Benchmark:
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path} ({error.__class__.__name__}); write one (docs/adding.md), "
            f"or choose a built-in benchmark with --benchmark: {', '.join(builtin_benchmarks())}"
        ) from None


def _parse(text: str, source: str) -> Benchmark:
    try:
        fields = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not a yaml file: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{source} must hold the fields {', '.join(BenchmarkSpec.model_fields)}")
    return Benchmark.from_dict(fields, source)
