"""How many kernels a method asks for, against what its passes ask for: the cost of adapting where the host decides.

    python benchmarks/launches.py                              # every method, on a CPU, in a few minutes
    python benchmarks/launches.py --methods vptta,pass --top 12

At batch 4 a GPU waits for Python: what a method costs is the number of calls it makes, less what the kernels compute.
This counts aten calls that would be kernels (views and allocations are free), in one batch after a few others, and
divides by the calls of the declared passes: a forward is `norm`'s, a backward what `tent` makes beyond it. `waits` are
calls that stop the host until the device has caught up, `constants` tensors made from Python values, each a copy to the
device. Optimisers are fused, Sinkhorn and a grouped BatchNorm are one kernel each, as on a GPU, and no step is
recorded, since a recorded one is a single call. A count is no time: it says where to look.
"""

import argparse
import importlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from adapt_whole import made_parts
from ttdg.adaptation import METHODS, adapt
from ttdg.checkpoints import Model, ModelCard
from ttdg.data import find_sites, load_arrays, load_benchmark
from ttdg.data.synthetic.write import write_benchmark
from ttdg.matching import nonblocking
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph
from ttdg.networks.batchnorm import grouped

FREE = {
    "detach",
    "_unsafe_view",
    "alias",
    "lift_fresh",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
}
SINKHORN = 1  # the fused plan


@dataclass
class Launches(TorchDispatchMode):
    """Counts calls by name while active."""

    calls: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    constants: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.paused:
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: tuple[Any, ...]) -> None:
        name = func.overloadpacket.__name__
        if name == "lift_fresh":
            self.constants += 1
        if name in WAITS or (name.startswith("index") and _masked(args)):
            self.waits[name] += 1
        if name not in FREE and not func.is_view and func.namespace == "aten":
            self.calls[name] += 1


def _masked(args: tuple[Any, ...]) -> bool:
    """Is something indexed by a mask, whose count the host must know?"""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in indices)


@contextmanager
def as_on_a_gpu(launches: Launches) -> Iterator[None]:
    """What asks where a tensor lies hears: on a GPU. Optimisers are fused then, Sinkhorn's plan and a
    grouped BatchNorm count as their fused kernels, and loops hear late that they are at rest, which is no waiting."""
    sinkhorn = importlib.import_module("ttdg.matching.sinkhorn.api")  # the name is also its function's

    def uncounted(work: Callable[..., Any], instead: int = 0) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            before, launches.paused = launches.paused, True
            try:
                return work(*args)
            finally:
                launches.paused = before
                launches.calls["fused"] += 0 if before else instead

        return called

    def tolist(tensor: torch.Tensor) -> Any:
        launches.waits["tolist"] += not launches.paused
        return read(tensor)

    yes, no, read = property(lambda tensor: True), property(lambda tensor: False), torch.Tensor.tolist
    with (
        mock.patch.object(torch.Tensor, "is_cuda", yes, create=True),
        mock.patch.object(torch.Tensor, "is_cpu", no, create=True),
        mock.patch.object(torch.Tensor, "tolist", tolist, create=True),
        mock.patch.object(sinkhorn, "_plan", uncounted(sinkhorn._plan, SINKHORN)),
        mock.patch.object(sinkhorn, "_fused_kernel", return_value=None),
        mock.patch.object(grouped, "gpu_program", return_value=uncounted(grouped._normalise, 1)),
        mock.patch.object(nonblocking, "_sent", lambda question: (question, None)),
        mock.patch.object(nonblocking, "_arrived", uncounted(nonblocking._arrived)),
        cuda_graph.disabled(),
    ):
        yield


def counted(model: Model, name: str, batches: Callable[[int], torch.Tensor], count: int) -> Launches:
    """Of the last of `count` batches, by when memories are warm."""
    launches = Launches()
    with as_on_a_gpu(launches):
        adapter = adapt(model, name)
        launches.paused = True
        for batch in range(count):
            launches.paused = batch < count - 1
            with launches:
                adapter(batches(batch))
    return launches


def rows_of(found: dict[str, Launches]) -> dict[str, dict[str, Any]]:
    forward = found["norm"].calls.total()
    backward = found["tent"].calls.total() - forward
    rows = {}
    for name, launches in found.items():
        passes = METHODS[name].forwards * forward + METHODS[name].backwards * backward
        calls = launches.calls.total()
        rows[name] = {
            "calls": calls, "passes": passes, "of_its_passes": calls / passes, "beside": calls - passes,
            "waits": dict(launches.waits), "constants": launches.constants,
        }  # fmt: skip
    return rows


def report(rows: dict[str, dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for name in ("method", "calls", "of its passes", "× its passes", "waits", "constants"):
        table.add_column(name, justify="left" if name in ("method", "waits") else "right")
    for name, row in rows.items():
        waits = ", ".join(f"{what} {times}" for what, times in row["waits"].items())
        table.add_row(
            name,
            str(row["calls"]),
            str(row["passes"]),
            f"{row['of_its_passes']:.2f}",
            waits,
            str(row["constants"]),
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--batches", type=int, default=6, help="the last of these is counted")
    parser.add_argument("--methods", default="all", help="with commas, or all")
    parser.add_argument("--top", type=int, default=0, help="show each method's most frequent calls too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = list(METHODS) if options.methods == "all" else options.methods.split(",")
    names = [name for name in METHODS if name in {*asked, "norm", "tent"}]

    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(3, options.encoder)).eval()
    made = [torch.randn(options.batch, 3, options.size, options.size) for _ in range(options.batches)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_benchmark(folder, "fundus", 8, size=options.size)
        benchmark = replace(load_benchmark(None, folder), size=options.size)
        some = load_arrays(next(iter(find_sites(folder).values())).cases[:8], benchmark)
        parts = made_parts(network, benchmark, some, names)
    model, found = Model(network, ModelCard(network.spec, benchmark), parts), {}
    for name in names:
        found[name] = counted(model, name, made.__getitem__, options.batches)
        if options.top:
            print(name, found[name].calls.most_common(options.top), flush=True)
    rows = rows_of(found)
    report(rows, f"aten calls a batch: {options.encoder}, {options.size}², batch {options.batch}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
