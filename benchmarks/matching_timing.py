"""Timing and random problems shared by the matching benchmarks."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ttdg.matching import assign, stacked

N, D, H = 100, 120, 256
Runs = dict[str, Callable[[], object]]


def race(runs: Runs, rounds: int, device: str) -> dict[str, float]:
    """Median milliseconds of each run; the runs alternate, and the first two rounds are warm-up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            wait(device)
            start = time.perf_counter()
            run()
            wait(device)
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def wait(device: str) -> None:
    """Wait until the GPU is idle."""
    if device == "cuda":
        torch.cuda.synchronize()


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def repeat(run: Callable[[], object], times: int) -> None:
    """Call `run` several times."""
    for _ in range(times):
        run()


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """`run` as one CUDA graph: recorded once, replayed by one call. `run` must not read values from the GPU."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        repeat(run, 3)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def random_problem(
    m: int, device: str, with_affinity: bool = True
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Random edges, affinity, soft matching and mask of m graphs."""
    draw = torch.Generator().manual_seed(m)
    edges = torch.rand(m, N, N, generator=draw) / N
    affinity = stacked(torch.rand(m, m, N, N, generator=draw)).to(device) if with_affinity else None
    mask = torch.ones(m, N, dtype=torch.bool, device=device)
    U = assign(torch.rand(m, N, D, generator=draw).to(device), mask)
    return (edges + edges.mT).to(device), affinity, U, mask
