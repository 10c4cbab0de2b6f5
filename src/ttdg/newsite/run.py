"""What a run over a folder is: its model, method and options, as the journal and the manifest state it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

import ttdg
from ttdg.adaptation import METHODS
from ttdg.adaptation.gate import UNGATED
from ttdg.adaptation.gate_tests import can_expect_gains
from ttdg.checkpoints import Model
from ttdg.errors import UserError
from ttdg.newsite.site_check import LEAST
from ttdg.safety import NO_FINGERPRINT, Drift
from ttdg.safety.policy import GatePolicy

TOO_FEW = (
    f"The distance from the source sites is unknown: it needs at least {LEAST} images that can be read and are not "
    "black, of one colour or noise."
)
OF_FOLDER = ("folder_steps", "epochs")  # options that act in the stream `folder` alone …
OF_BATCHES = ("steps", "capacity")  # … and those of the same methods that act in all other streams alone
DEFAULT = "judge"  # the method if the model has its parts


@dataclass(frozen=True)
class Run:
    """Everything but the images that answers depend on. It holds no path."""

    model: str  # hash of the weights
    parts: Mapping[str, str]  # name → hash, for the parts that the method uses
    method: str
    options: Mapping[str, Any]  # those that were given
    views: str
    batch: int
    stream: str
    gate: Mapping[str, float] | None = None  # bounds of the gate; None without a gate

    def check_same(self, other: Mapping[str, Any]) -> None:
        """Raise if an output folder holds the answers of another run."""
        mine = asdict(self)
        differ = [name for name in mine if mine[name] != other.get(name)]
        if differ:
            changes = ", ".join(
                f"{name} {_text(other.get(name))} instead of {_text(mine[name])}" for name in differ
            )
            raise UserError(
                f"the output folder holds answers of another run ({changes}); choose another output folder, or ask for "
                "all answers again"
            )


def describe_run(
    model: Model,
    method: str,
    options: Mapping[str, Any],
    views: str,
    batch: int,
    stream: str,
    policy: GatePolicy | None = None,
) -> Run:
    """Return the description of a run. The stream of a method without memory does not matter."""
    parts = {name: model.parts[name].digest for name in METHODS[method].parts}
    given = json.loads(json.dumps(dict(options), sort_keys=True, default=str))
    return Run(
        model.card.sha256, parts, method, given, views, batch, stream if METHODS[method].memory else "any",
        None if policy is None else policy.to_dict(),
    )  # fmt: skip


def default_method(model: Model) -> str:
    """Return `judge` for a model with its parts, else `source`."""
    return DEFAULT if all(name in model.parts for name in METHODS[DEFAULT].parts) else "source"


def default_policy(model: Model, method: str) -> GatePolicy | None:
    """Return the gate's default policy for a method that neither is the source nor judges its own answers.

    Without a judge that expects gains there is no gate by default.
    """
    needs = method not in UNGATED and can_expect_gains(model.parts)
    return GatePolicy() if needs else None


def describe_masks(run: Run, model: Model, drift: Drift | None = None) -> dict[str, Any]:
    """Return the content of `manifest.json`: what the mask values mean, and what made the masks."""
    benchmark = model.card.benchmark
    return {
        "mask_values": {
            str(grey): label for grey, label in zip(benchmark.greys.tolist(), benchmark.labels, strict=True)
        },
        "regions": {
            name: [benchmark.labels[i] for i in labels] for name, labels in benchmark.regions.items()
        },
        "geometry": "masks have the size of their image, turned upright as its EXIF orientation says",
        "benchmark": benchmark.name,
        "run": asdict(run),
        "drift": drift.to_dict() if drift is not None else {"verdict": unknown_drift(model)},
        "versions": {"ttdg": ttdg.__version__, "torch": str(torch.__version__)},
    }


def idle_options_note(method: str, stream: str | None, options: Iterable[str]) -> str:
    """Return a note about options that do nothing in a stream; empty if there are none.

    Methods that learn a site have options for the stream `folder`, and options for all other streams.

    Args:
        method: Name of the method.
        stream: Name of the stream; None is that which the method takes by default in `predict`.
        options: Names of the options that were given.
    """
    known = METHODS[method].options if method in METHODS else {}
    of_folder = [name for name in OF_FOLDER if name in known]
    if not of_folder:
        return ""
    stream = stream or "folder"
    of_stream, others = (of_folder, OF_BATCHES) if stream == "folder" else (OF_BATCHES, of_folder)
    idle = [name for name in options if name in others]
    if not idle:
        return ""
    verb = "does" if len(idle) == 1 else "do"
    return (
        f"{method}: {', '.join(idle)} {verb} nothing in the stream {stream}, where {' and '.join(of_stream)} "
        f"{'counts' if len(of_stream) == 1 else 'count'}"
    )


def unknown_drift(model: Model) -> str:
    """Return why the distance of a site is not known."""
    return TOO_FEW if "fingerprint" in model.parts else NO_FINGERPRINT


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and value:
        return " and ".join(f"{name} {_text(part)}" for name, part in value.items())
    text = str(value) if value not in (None, {}, "") else "none"
    return text[:12] if len(text) == 64 else text
