"""Descriptions of benchmarks: the labels, how grey values encode them, and which regions are scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import UInt8

from ttdg.data.schema import MAX_LABELS, BenchmarkSpec, Normalisation, Task, ThresholdSpec, validated
from ttdg.errors import UserError, suggestion
from ttdg.types import Regions

UNKNOWN = MAX_LABELS  # entry of an encoding's table for a grey value without a label


@dataclass(frozen=True)
class Exact:
    """An encoding in which each listed grey value stands for one label; any other value is an error."""

    values: Mapping[int, int]  # grey value → label index

    def table(self) -> UInt8[np.ndarray, "256"]:
        """Return the label index of every grey value, or `UNKNOWN`."""
        table = np.full(256, UNKNOWN, np.uint8)
        table[list(self.values)] = list(self.values.values())
        return table

    def greys(self, labels: int) -> UInt8[np.ndarray, "c"]:
        """Return the first listed grey value of each label."""
        first = {label: value for value, label in reversed(list(self.values.items()))}
        return np.array([first.get(label, 0) for label in range(labels)], np.uint8)

    def to_dict(self, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return the `mask` entry of a benchmark file."""
        return {str(value): labels[label] for value, label in self.values.items()}


@dataclass(frozen=True)
class Threshold:
    """An encoding with one label above a threshold and another below. It tolerates soft edges."""

    threshold: int  # the last grey value of `below`
    above: int  # label index
    below: int  # label index

    def table(self) -> UInt8[np.ndarray, "256"]:
        """Return the label index of every grey value."""
        return np.where(np.arange(256) > self.threshold, self.above, self.below).astype(np.uint8)

    def greys(self, labels: int) -> UInt8[np.ndarray, "c"]:
        """Return white (255) for the label above the threshold and black (0) for the one below."""
        return np.where(np.arange(labels) == self.above, 255, 0).astype(np.uint8)

    def to_dict(self, labels: tuple[str, ...]) -> dict[str, Any]:
        """Return the `mask` entry of a benchmark file."""
        return {"threshold": self.threshold, "above": labels[self.above], "below": labels[self.below]}


@dataclass(frozen=True)
class Benchmark:
    """The labels of a benchmark, their encoding in mask files, and the input format of the network."""

    name: str
    labels: tuple[
        str, ...
    ]  # a label index is a position in this tuple; 0 is the background of a segmentation
    encoding: Exact | Threshold
    regions: Regions  # structures to score, as unions of label indices
    normalisation: Normalisation
    size: int  # side of the network's square input, in pixels
    volumes: bool = False  # the cases of a patient, sorted by name, are the slices of a volume
    task: Task = "segmentation"  # selects the network's head, the loss, the metric and the reader of labels

    def encode(self, mask: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
        """Return the label indices of a mask's raw grey values. The array is read-only."""
        # bytes.translate is three times as fast as indexing a table with an array of bytes.
        labels = np.frombuffer(mask.tobytes().translate(self._table), np.uint8).reshape(mask.shape)
        if labels.max(initial=0) == UNKNOWN:
            raise UserError(self._unknown(np.unique(mask[labels == UNKNOWN]).tolist()))
        return labels

    def decode(self, labels: UInt8[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
        """Return the grey values that encode these label indices: the inverse of `encode`."""
        return self.greys[labels]

    @cached_property
    def greys(self) -> UInt8[np.ndarray, "c"]:
        """The grey value that encodes each label."""
        return self.encoding.greys(len(self.labels))

    @cached_property
    def _table(self) -> bytes:
        return self.encoding.table().tobytes()

    def _unknown(self, values: list[int]) -> str:
        shown = ", ".join(map(str, values[:8])) + (", …" if len(values) > 8 else "")
        known = ", ".join(f"{value} = {label}" for value, label in self.encoding.to_dict(self.labels).items())
        return (
            f"the mask holds grey values that benchmark {self.name!r} does not know: {shown} "
            f"(it knows {known}); correct the mask, or the entry `mask` of the benchmark's yaml file"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the benchmark's yaml file. All keys are strings, so that it can be stored as JSON."""
        if self.task == "classification":
            fields = {"name": self.name, "task": self.task, "labels": list(self.labels)}
            return {**fields, "normalisation": self.normalisation, "size": self.size}
        regions = {name: [self.labels[label] for label in labels] for name, labels in self.regions.items()}
        volumes = (
            {"volumes": True} if self.volumes else {}
        )  # left out, so that keys of jobs with images stay valid
        return {
            "name": self.name,
            "labels": list(self.labels),
            "mask": self.encoding.to_dict(self.labels),
            "regions": regions,
            "normalisation": self.normalisation,
            "size": self.size,
            **volumes,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "benchmark") -> "Benchmark":
        """Build a benchmark from the output of `to_dict`; error messages name the file `source`."""
        spec = validated(fields, source)
        index = {label: number for number, label in enumerate(spec.labels)}
        encoding: Exact | Threshold
        if spec.mask is None or spec.regions is None:  # a classification: a class is a constant label map
            encoding, classes = (
                Exact({i: i for i in index.values()}),
                {name: (i,) for name, i in index.items()},
            )
            return cls(
                spec.name,
                tuple(spec.labels),
                encoding,
                classes,
                spec.normalisation,
                spec.size,
                task=spec.task,
            )
        if isinstance(mask := spec.mask, ThresholdSpec):
            encoding = Threshold(mask.threshold, index[mask.above], index[mask.below])
        else:
            encoding = Exact({value: index[label] for value, label in mask.items()})
        regions = {name: tuple(index[label] for label in labels) for name, labels in spec.regions.items()}
        return cls(
            spec.name, tuple(spec.labels), encoding, regions, spec.normalisation, spec.size, spec.volumes
        )


def task_of(fields: Mapping[str, Any]) -> str:
    """Return the task of a benchmark from the output of `Benchmark.to_dict`."""
    return str(fields.get("task", "segmentation"))


def builtin_benchmarks() -> tuple[str, ...]:
    """Return the names of the benchmarks that are part of the package, sorted."""
    files = resources.files("ttdg.data").joinpath("benchmarks").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_benchmark(spec: str | Path | None, root: Path | None = None) -> Benchmark:
    """Load a benchmark description.

    Args:
        spec: The name of a built-in benchmark, the path of a yaml file, or None for `root/benchmark.yaml`.
        root: The benchmark folder; None is the current folder. Used only if `spec` is None.
    """
    if spec is None:
        return _from_file((root or Path()) / "benchmark.yaml")
    builtin = builtin_benchmarks()
    if str(spec) in builtin:
        file = resources.files("ttdg.data").joinpath("benchmarks", f"{spec}.yaml")
        return _parse(file.read_text(encoding="utf-8"), f"{spec}.yaml")
    if Path(spec).suffix in (".yaml", ".yml"):
        return _from_file(Path(spec))
    raise UserError(
        f"unknown benchmark {str(spec)!r}{suggestion(str(spec), builtin)}; a yaml file is also accepted"
    )


def _from_file(path: Path) -> Benchmark:
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path} ({error.__class__.__name__}); write this file (docs/adding.md), "
            f"or choose a built-in benchmark: {', '.join(builtin_benchmarks())}"
        ) from None


def _parse(text: str, source: str) -> Benchmark:
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{source} is not a yaml file: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{source} must hold the fields {', '.join(BenchmarkSpec.model_fields)}")
    return Benchmark.from_dict(fields, source)
