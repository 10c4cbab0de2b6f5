"""What a caller of `predict` asks for, and the plan that follows from it. Nothing is written here."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttdg.adaptation import METHODS, Adapter, Resumable, SiteLearner, build_adapter
from ttdg.adaptation.gate import gate as put_gate
from ttdg.checkpoints import Model
from ttdg.errors import UserError
from ttdg.newsite.auto import AUTO, MethodChoice, choose_method
from ttdg.newsite.inputs import FoundFiles, find_files
from ttdg.newsite.journal import SHARDS, Journal, answer_key
from ttdg.newsite.run import Run, default_policy, describe_run
from ttdg.newsite.run_state import RunState
from ttdg.newsite.site_check import SampledSite, check_site
from ttdg.newsite.stages.output_folder import check_output_folder
from ttdg.safety import Drift
from ttdg.safety.policy import GatePolicy

if TYPE_CHECKING:
    from ttdg.newsite.shards import Sharding

STREAMS = ("online", "folder")

Chosen = Callable[[MethodChoice, Drift | None], None]  # receives the method and the drift, if it is known


@dataclass(frozen=True)
class FolderRequest:
    """The arguments of `predict`, with their names there, but for the functions that it calls."""

    model: Model
    inputs: Sequence[Path]
    out: Path
    method: str
    options: Mapping[str, Any]
    views: str
    stream: str | None
    batch: int
    overlays: bool
    workers: int | None
    again: bool
    gate: GatePolicy | bool | None
    most_pixels: int
    probabilities: bool
    keep_identity: bool
    shards: "Sharding | None"


@dataclass(frozen=True)
class FolderPlan:
    """A request that can be carried out."""

    request: FolderRequest
    journal: Journal
    found: FoundFiles
    choice: MethodChoice
    sample: SampledSite | None  # None if no method had to be chosen; `check_sample` then measures it
    adapter: Adapter  # with its gate
    policy: GatePolicy | None
    stream: str
    run: Run

    @property
    def memory(self) -> bool:
        """Whether the method keeps what it learns."""
        return METHODS[self.choice.method].memory

    @property
    def key(self) -> str:
        """Hash of everything but the images that the answers depend on."""
        return answer_key(json.dumps(asdict(self.run), sort_keys=True))

    @property
    def images(self) -> list[str]:
        """Names of all images; a frame is an image."""
        return [image.file for image in self.found.images]

    def saved_state(self) -> RunState | None:
        """Return where the state of the adapter is kept until the run is complete; None if it cannot be saved."""
        if not (self.memory and isinstance(self.adapter, Resumable)):
            return None
        return RunState(self.request.out, self.key, self.adapter)

    def check_sample(self) -> SampledSite:
        """Return what a sample of the images says of the folder."""
        return self.sample or _check_sample(self.request, self.found)


def make_plan(request: FolderRequest, chosen: Chosen, prepared: Callable[[Adapter], None]) -> FolderPlan:
    """Check a request and choose the method. A request that cannot be carried out raises a `UserError`.

    Args:
        request: The arguments of `predict`.
        chosen: Called with the method and the drift, if `auto` measured it.
        prepared: Called with the adapter, without its gate.
    """
    check_output_folder(request.out, request.inputs)
    model, journal = request.model, Journal(request.out, request.again)
    if request.shards is None and not request.again and (request.out / SHARDS).exists():
        raise UserError(
            "the output folder holds an unfinished prediction in shards; continue it with shards, or ask for all "
            "answers again"
        )
    inputs = request.inputs if request.shards is None else [path.absolute() for path in request.inputs]
    found = find_files(inputs, request.out)
    _check_names([image.file for image in found.images], journal)
    choice, sample = MethodChoice(request.method, ""), None
    if choice.method == AUTO:
        if request.options:
            raise UserError("the method 'auto' has no options; name the method whose options these are")
        sample = _check_sample(request, found)
        choice = choose_method(model, sample.drift, sample.learnable, journal)
    adapter = build_adapter(model, choice.method, request.options, request.views)
    prepared(adapter)
    if request.stream not in (None, *STREAMS):
        raise UserError(f"a folder is answered in the stream 'online' or 'folder', not {request.stream!r}")
    stream = request.stream or ("folder" if isinstance(adapter, SiteLearner) else "online")
    if request.shards is not None:
        from ttdg.newsite.shards import check_sharding

        check_sharding(choice.method, stream, adapter)
    policy = _policy(request.gate, model, choice.method)
    if policy is not None:
        memory = METHODS[choice.method].memory
        adapter = put_gate(adapter, model, model.card.benchmark.regions, policy, memory)
    run = describe_run(model, choice.method, request.options, request.views, request.batch, stream, policy)
    if journal.entries:
        run.check_same(journal.run)
    chosen(choice, sample.drift if sample is not None else None)
    return FolderPlan(request, journal, found, choice, sample, adapter, policy, stream, run)


def _check_sample(request: FolderRequest, found: FoundFiles) -> SampledSite:
    return check_site(request.model, found.images, most_pixels=request.most_pixels, workers=request.workers)


def _check_names(files: Sequence[str], journal: Journal) -> None:
    """Refuse images that had other names before: with one input a name begins in it, with several with its name.

    Their answers would be made again under new names, beside masks that a person may have corrected.
    """
    if journal.entries.keys() & set(files):
        return
    shorter = {name.partition("/")[2]: name for name in journal.entries if "/" in name}
    for file in files:
        inside = file.partition("/")[2]
        before = inside if inside in journal.entries else shorter.get(file, "")
        if before:
            raise UserError(
                f"the output folder holds answers to these images under other names, such as {before} for {file}, "
                "because their inputs were given otherwise; give the inputs of the earlier call, or another output "
                "folder"
            )


def _policy(gate: GatePolicy | bool | None, model: Model, method: str) -> GatePolicy | None:
    """Return the policy that an argument `gate` stands for; None without a gate."""
    if gate is None:
        return default_policy(model, method)
    return GatePolicy() if gate is True else gate or None
