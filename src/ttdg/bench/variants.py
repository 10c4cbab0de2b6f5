"""A table row: a method with its settings, and its copies on the axes of a table: statistics, views and gate."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ttdg.adaptation import METHODS, defaults, effective_statistics, effective_views
from ttdg.adaptation.gate import UNGATED
from ttdg.bench.config import MethodEntry
from ttdg.bench.fitting import parts_from_training
from ttdg.errors import UserError
from ttdg.evaluation.records import row_label
from ttdg.evaluation.search_space import configurations
from ttdg.safety.policy import GatePolicy


@dataclass(frozen=True)
class MethodVariant:
    """A table row: a method with its settings.

    Attributes:
        label: Name of the row.
        method: Name of the method.
        options: Options that differ from the default.
        parts: Settings of the parts that must be fitted.
        recipe: Recipe of the source model as a training job states it; the seed of the job replaces its seed.
        configurations: Candidate options of a tuned row; empty if the row is not tuned.
        views: Views over which the answers are averaged; a tuned row has the options chosen without views.
        statistics: BatchNorm statistics under the method; a tuned row has the options chosen with them.
        gate: Whether the gate is around the method; a tuned row has the options chosen without it.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    configurations: tuple[Mapping[str, Any], ...] = ()
    views: str = "plain"
    statistics: str = "own"
    gate: bool = False

    def without_gate(self) -> "MethodVariant":
        """Return the row without the gate and the parts that only the gate needs."""
        own = {name: settings for name, settings in self.parts.items() if name in METHODS[self.method].parts}
        return replace(self, gate=False, parts=own) if self.gate else self

    def on_stream(self, stream: str) -> "MethodVariant":
        """Return the row with the candidate options of this stream."""
        if not self.configurations or stream != "folder" or not METHODS[self.method].folder_grid:
            return self
        return replace(self, configurations=candidates(self.method, self.options, stream))

    def default_options(self) -> dict[str, str]:
        """Return the options that keep their default, as text, and the bounds of the gate if there is one."""
        given = {*self.options, *(name for point in self.configurations for name in point)}
        kept = {name: repr(value) for name, value in defaults(self.method).items() if name not in given}
        bounds = GatePolicy().to_dict() if self.gate else {}
        return kept | {f"gate.{name}": repr(value) for name, value in bounds.items()}


def on_axes(
    variant: MethodVariant, entry: MethodEntry, statistics: Sequence[str], views: Sequence[str]
) -> list[MethodVariant]:
    """Return the row once for each of the BatchNorm statistics and views: the entry's, or those of the experiment.

    A method that allows no other statistics than its own has one row for all of them, and a method that predicts mirror
    images itself gets no row with flips, because they would repeat the other row.
    """
    wanted = entry.statistics or statistics, entry.views or views
    if [*map(list, wanted)] == [["own"], ["plain"]]:
        return [variant]
    method, rows = METHODS[variant.method], []
    bases = dict.fromkeys(effective_statistics(method, name) for name in wanted[0])
    for base, view in itertools.product(
        bases, dict.fromkeys(effective_views(method, name) for name in wanted[1])
    ):
        said = "own" if entry.name and len(entry.statistics or ()) == 1 else base  # the entry's name says it
        seen = "plain" if entry.name and len(entry.views or ()) == 1 else view
        label = row_label(variant.label, seen, said)
        rows.append(replace(variant, label=label, views=view, statistics=base))
    return rows


def at_the_gate(
    row: MethodVariant, entry: MethodEntry, gate: Sequence[bool], parts: Mapping[str, Mapping[str, Any]]
) -> list[MethodVariant]:
    """Return the row without the gate, with it, or both: as the entry says, or the experiment.

    The gate needs a judge. The source and methods that judge their own answers have no row with the gate, unless their
    entry asks for it.
    """
    wanted = dict.fromkeys(
        gated and (entry.gate is not None or row.method not in UNGATED) for gated in entry.gate or gate
    )
    if True not in wanted:
        return [row]
    if "prior" not in parts_from_training(row.recipe) or row.recipe.get("universe_loss") == "literal":
        raise UserError(
            "the gate needs a judge, and a judge needs a prior: set `universe: 0.1` in the recipe"
        )
    said = bool(entry.name) and entry.gate == [True]  # the entry's name says it
    label = row.label if said else row_label(row.label, "plain", gate=True)
    judged = replace(row, label=label, gate=True, parts={"judge": parts.get("judge", {}), **row.parts})
    return [judged if gated else row for gated in wanted]


def candidates(
    method: str, given: Mapping[str, Any], stream: str = "online"
) -> tuple[Mapping[str, Any], ...]:
    """Return the configurations a search tries, with the given options fixed; empty if only one remains."""
    points = [{**point, **given} for point in configurations(method, stream)]
    different = tuple(point for number, point in enumerate(points) if point not in points[:number])
    return different if len(different) > 1 else ()
