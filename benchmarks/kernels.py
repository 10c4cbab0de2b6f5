"""Where the time of a training step and of a self-training step goes: milliseconds, and the kernels by total time.

    python benchmarks/kernels.py [--rows 25] [--compile]                          # on the GPU, if torch finds one
    python benchmarks/kernels.py --encoder light --size 64 --batch 4 --repeats 3  # a rehearsal on a CPU

Each step is timed as it is used (recorded as a CUDA graph on a GPU), with the convolution algorithms that cuDNN's
heuristics choose and with those that its search finds (`torch.backends.cudnn.benchmark`). The table of kernels is that
of the same step without a graph. `--compile` also times a forward and a backward pass of the network by torch.compile.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ttdg.adaptation import adapt
from ttdg.data import load_benchmark, normalise
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph
from ttdg.training import Recipe
from ttdg.training.learner import Learner
from ttdg.training.loop import build_prior, make_fabric, set_up

WARM_UP = cuda_graph.WARM_UP_CALLS + 2
PROFILED = 3  # calls whose kernels are counted


def synchronise(device: str) -> None:
    """Wait until the GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object], device: str, repeats: int) -> float:
    """Return the median time of a call, in blocks of five calls."""
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(5):
            work()
        synchronise(device)
        times.append((time.perf_counter() - start) / 5)
    return 1e3 * statistics.median(times)


def print_kernels(work: Callable[[], object], device: str, rows: int) -> None:
    """Print the kernels of one call by their total time; on a CPU, the operators by their own time."""
    with cuda_graph.disabled():
        for _ in range(PROFILED):
            work()
        synchronise(device)
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
        with profile(activities=activities) as trace:
            for _ in range(PROFILED):
                work()
            synchronise(device)
    times, counts = Counter[str](), Counter[str]()
    for event in trace.events():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu == (device == "cuda"):
            times[event.name] += event.device_time if on_gpu else event.self_cpu_time_total
            counts[event.name] += 1
    print(f"  all kernels: {sum(times.values()) / PROFILED / 1e3:.2f} ms a call")
    for name, total in times.most_common(rows):
        print(f"  {total / PROFILED / 1e3:8.3f} ms {counts[name] / PROFILED:7.1f} ×  {name[:100]}")


def training_step(options: argparse.Namespace, universe: float) -> Callable[[], object]:
    """One step of source training on fixed images."""
    recipe = Recipe(
        encoder=options.encoder, optimiser="adamw", lr=3e-4, batch=options.batch, universe=universe
    )
    network = Segmenter(NetworkSpec(2, options.encoder))
    prior = build_prior(recipe, network, load_benchmark("polyp")) if universe else None
    learner = Learner(network, prior, recipe.loss, universe)
    update = set_up(make_fabric(recipe, options.device), learner, recipe)
    images = torch.rand(options.batch, 3, options.size, options.size, device=options.device)
    labels = (images.mean(1) > 0.6).long()
    return lambda: update(images, labels, 1.0)


def self_training_step(options: argparse.Namespace) -> Callable[[], object]:
    """One step of `self-training` on images in its memory."""
    adapter: Any = adapt(
        Segmenter(NetworkSpec(2, options.encoder)).to(options.device), "self-training", draw=options.batch
    )
    images = torch.rand(2 * options.batch, 3, options.size, options.size, device=options.device)
    adapter._remember(normalise(images, "imagenet"))
    return adapter._learn


def compiled_passes(options: argparse.Namespace, compiled: bool) -> Callable[[], object]:
    """A forward and a backward pass of the network in bfloat16, compiled or not."""
    network: Any = Segmenter(NetworkSpec(2, options.encoder)).to(
        options.device, memory_format=torch.channels_last
    )
    network = torch.compile(network) if compiled else network
    images = torch.rand(options.batch, 3, options.size, options.size, device=options.device)
    images = images.contiguous(memory_format=torch.channels_last)

    def passes() -> None:
        with torch.autocast(options.device, torch.bfloat16):
            loss = network(images).float().square().mean()
        loss.backward()

    return passes


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    steps: dict[str, Callable[[], Callable[[], object]]] = {
        "training, with the universe": lambda: training_step(options, 0.1),
        "training, without": lambda: training_step(options, 0.0),
        "self-training": lambda: self_training_step(options),
    }
    for name, make in steps.items():
        for search in (False, True):
            torch.backends.cudnn.benchmark = search
            took = milliseconds(make(), options.device, options.repeats)
            print(f"{name}: {took:.2f} ms a step of {options.batch}, cudnn.benchmark {search}", flush=True)
        torch.backends.cudnn.benchmark = False
        print_kernels(make(), options.device, options.rows)
    for compiled in (False, True) if options.compile else ():
        start = time.perf_counter()
        took = milliseconds(compiled_passes(options, compiled), options.device, options.repeats)
        print(f"passes, compiled {compiled}: {took:.2f} ms; {time.perf_counter() - start:.0f} s with set-up")


if __name__ == "__main__":
    main()
