"""Counts the kernel launches of each method, relative to the launches of its forward and backward passes.

    python benchmarks/launches.py                              # every method, on a CPU, in a few minutes
    python benchmarks/launches.py --methods vptta,pass --top 12

At batch size 4 the time of a method on a GPU is determined by the number of kernel launches rather than by what the
kernels compute. This benchmark counts, for one batch after a few others, the aten calls that would launch a kernel;
views and allocations are free. It divides the count by that of the declared passes: a forward pass is that of `norm`, a
backward pass is what `tent` adds to it. `waits` are calls that make the host wait for the device. `constants` are
tensors made from Python values, each of which is copied to the device. As on a GPU, optimisers are fused, and Sinkhorn
and grouped BatchNorm are one kernel each. CUDA graphs are disabled, since a replay is a single call. Counts are not
times: they show where to look.
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
    "detach", "_unsafe_view", "alias", "lift_fresh",
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip
WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive",
}  # fmt: skip
SINKHORN = 1  # launches of the fused Sinkhorn kernel


@dataclass
class Launches(TorchDispatchMode):
    """Counts calls by name while active and not paused."""

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
    """True for indexing with a boolean mask, where the host must wait for the number of True values."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in indices)


@contextmanager
def as_on_a_gpu(launches: Launches) -> Iterator[None]:
    """Context in which CPU tensors claim to be on a GPU, so that methods take their GPU code paths.

    Sinkhorn and grouped BatchNorm are counted as their fused kernels. Non-blocking convergence checks are not counted.
    """
    sinkhorn = importlib.import_module(
        "ttdg.matching.sinkhorn.api"
    )  # the package exports a function of the same name

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
        mock.patch.object(grouped, "fused_kernel", return_value=uncounted(grouped._normalise, 1)),
        mock.patch.object(nonblocking, "_sent", lambda question: (question, None)),
        mock.patch.object(nonblocking, "_arrived", uncounted(nonblocking._arrived)),
        cuda_graph.disabled(),
    ):
        yield


def counted(model: Model, name: str, batches: Callable[[int], torch.Tensor], count: int) -> Launches:
    """Launches of the last of `count` batches, when the memories of methods are filled."""
    launches = Launches()
    with as_on_a_gpu(launches):
        adapter = adapt(model, name)
        launches.paused = True
        for batch in range(count):
            launches.paused = batch < count - 1
            with launches:
                adapter(batches(batch))
    return launches


def rows_of(launches_by_method: dict[str, Launches]) -> dict[str, dict[str, Any]]:
    """For each method its calls, those of its passes, their ratio and difference, waits and constants."""
    forward = launches_by_method["norm"].calls.total()
    backward = launches_by_method["tent"].calls.total() - forward
    rows = {}
    for name, launches in launches_by_method.items():
        passes = METHODS[name].forwards * forward + METHODS[name].backwards * backward
        calls = launches.calls.total()
        rows[name] = {
            "calls": calls, "passes": passes, "of_its_passes": calls / passes, "beside": calls - passes,
            "waits": dict(launches.waits), "constants": launches.constants,
        }  # fmt: skip
    return rows


def report(rows: dict[str, dict[str, Any]], title: str) -> None:
    """Print the rows as a table."""
    table = Table(title=title)
    for name in ("method", "calls", "of its passes", "× its passes", "waits", "constants"):
        table.add_column(name, justify="left" if name in ("method", "waits") else "right")
    for name, row in rows.items():
        waits = ", ".join(f"{what} {times}" for what, times in row["waits"].items())
        counts = str(row["calls"]), str(row["passes"]), f"{row['of_its_passes']:.2f}"
        table.add_row(name, *counts, waits, str(row["constants"]))
    Console(width=120).print(table)


def main() -> None:
    """Count the launches of the chosen methods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--batches", type=int, default=6, help="number of batches, of which the last is counted"
    )
    parser.add_argument("--methods", default="all", help="names separated by commas, or all")
    parser.add_argument("--top", type=int, default=0, help="also show this many of the most frequent calls")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = list(METHODS) if options.methods == "all" else options.methods.split(",")
    names = [name for name in METHODS if name in {*asked, "norm", "tent"}]

    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(3, options.encoder)).eval()
    coarse = torch.randn(options.batches, options.batch, 3, 16, 16)  # noise would not reach the methods
    batches = [torch.nn.functional.interpolate(x, size=options.size, mode="bilinear") for x in coarse]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_benchmark(folder, "fundus", 8, size=options.size)
        benchmark = replace(load_benchmark(None, folder), size=options.size)
        some = load_arrays(next(iter(find_sites(folder).values())).cases[:8], benchmark)
        parts = made_parts(network, benchmark, some, names)
    model, found = Model(network, ModelCard(network.spec, benchmark), parts), {}
    for name in names:
        found[name] = counted(model, name, batches.__getitem__, options.batches)
        if options.top:
            print(name, found[name].calls.most_common(options.top), flush=True)
    rows = rows_of(found)
    report(rows, f"aten calls per batch: {options.encoder}, {options.size}², batch {options.batch}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
