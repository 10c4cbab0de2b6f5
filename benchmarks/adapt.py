"""Speed and memory of adaptation and source training, compared with `source` in one run.

    python benchmarks/adapt.py                    # on the GPU, if torch finds one
    python benchmarks/adapt.py --device cpu --repeats 5

Prints the time of each method relative to `source`, its peak memory, the time of reading and scoring, the images per
second of a whole site and of training, and the growth of resident memory. On a GPU everything is measured twice: with
CUDA graphs, as users run it, and with every kernel launched from Python ("eager").
"""

import argparse
import copy
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adapt_report import report
from adapt_whole import made_parts, reading_and_scoring, resident_growth, training_speed, whole_site
from ttdg.adaptation import METHODS, adapt
from ttdg.checkpoints import Model, ModelCard
from ttdg.data import find_sites, load_arrays, load_benchmark
from ttdg.data.synthetic.write import write_benchmark
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph
from ttdg.networks.losses import dice_cross_entropy
from ttdg.training import Recipe

WARM_UP = cuda_graph.WARM_UP_CALLS + 3  # calls before the capture, the capture itself, and two replays
WAYS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "eager_": cuda_graph.disabled,
}


def ways(device: str) -> Mapping[str, Callable[[], AbstractContextManager[None]]]:
    """Return the ways to run a method, by the prefix of their result names: the default and, on a GPU, eager."""
    return WAYS if device == "cuda" else {"": nullcontext}


def seconds(works: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Return the median time of `repeats` calls of each function, after warm-up.

    The functions are called in turns, so that a drifting clock or a busy host affects all of them equally.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + WARM_UP):
        for name, work in works.items():
            synchronise(device)
            start = time.perf_counter()
            work()
            synchronise(device)
            if repeat >= WARM_UP:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def synchronise(device: str) -> None:
    """Wait until the GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def tidy(device: str) -> None:
    """Free the memory of earlier measurements."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def peak_memory(make: Callable[[], Callable[[], object]]) -> float:
    """Return the peak of allocated GPU memory, in MB, while the function of `make` is built, captured and replayed.

    A replay allocates nothing: it uses the memory of its capture.
    """
    tidy("cuda")
    torch.cuda.reset_peak_memory_stats()
    work = make()
    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def is_recorded(call: cuda_graph.GraphRunner | None) -> bool:
    """True if the runner has captured a graph."""
    return call is not None and any(
        isinstance(known, cuda_graph._CapturedGraph) for known in call._entries.values()
    )


def training_step(network: torch.nn.Module, images: torch.Tensor) -> Callable[[], None]:
    """Return a plain step of source training, in the precision of adaptation."""
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-5)
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.long, device=images.device)

    def step() -> None:
        network.train()
        dice_cross_entropy(network(images), labels).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def side_by_side(
    model: Model, name: str, images: torch.Tensor, repeats: int, device: str
) -> tuple[dict[str, float], bool, bool]:
    """Time a method beside `source`, `norm` and `tent`, in turns.

    Returns:
        Milliseconds per batch, their ratio to `source`, and their ratio to the cost of the method's passes (a forward
        pass costs what `norm` takes, a backward pass what `tent` takes in addition); whether the method's calls can be
        captured; and whether they were.
    """
    adapters: dict[str, Any] = {each: adapt(model, each) for each in ("source", "norm", "tent")}
    adapters["own"] = adapt(model, name)
    spent = seconds({each: partial(a, images) for each, a in adapters.items()}, repeats, device)
    forward, backward = spent["norm"], spent["tent"] - spent["norm"]
    passes = METHODS[name].forwards * forward + METHODS[name].backwards * backward
    own = spent["own"]
    found = {"ms": 1000 * own, "ratio": own / spent["source"], "of_its_passes": own / passes}
    call = getattr(adapters["own"], "_replay", None)
    return found, call is not None, is_recorded(call)


def methods_table(
    model: Model, names: list[str], images: torch.Tensor, repeats: int, device: str
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the measurements of every method: eager, and with CUDA graphs if its calls can be captured."""
    for name in names:
        row: dict[str, float] = {}
        for way, within in reversed(ways(device).items()):
            with within():
                found, recordable, recorded = side_by_side(model, name, images, repeats, device)
                if device == "cuda":
                    found["peak_mb"] = peak_memory(lambda n=name: partial(adapt(model, n), images))
                    tidy(device)
            if way or device == "cpu" or recorded:
                row |= {way + key: value for key, value in found.items()}
            if not recordable:
                break
        print(name, {key: round(value, 2) for key, value in row.items()}, flush=True)
        yield name, row


def main() -> None:
    """Parse the command line, measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--images", type=int, default=200, help="images of each synthetic hospital")
    parser.add_argument(
        "--data", type=Path, help="synthetic hospitals made by `ttdg data synth`; default: new ones"
    )
    parser.add_argument(
        "--methods", default="source,norm,alpha-bn,tent", help="names separated by commas, or all"
    )
    parser.add_argument(
        "--sites", default="source,norm,alpha-bn,tent", help="methods to run over a whole site"
    )
    parser.add_argument("--training", default="8,16,32", help="batch sizes, on a GPU")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, names = options.device, list(METHODS) if options.methods == "all" else options.methods.split(",")

    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(3, options.encoder)).to(device).eval()
    coarse = torch.randn(options.batch, 3, 16, 16, device=device)  # noise would not reach the methods
    images = torch.nn.functional.interpolate(coarse, size=options.size, mode="bilinear")
    results: dict[str, Any] = {**vars(options), "json": None, "data": None, "torch": torch.__version__}
    results |= {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    results |= {"threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "hospitals"
        if options.data:
            folder.symlink_to(options.data.resolve())
        else:
            write_benchmark(folder, "fundus", options.images, size=options.size)
        benchmark = replace(load_benchmark(None, folder), size=options.size)
        some = load_arrays(next(iter(find_sites(folder).values())).cases[:8], benchmark)
        parts = made_parts(network, benchmark, some, names)
        model = Model(network, ModelCard(network.spec, benchmark), parts)
        results["methods"] = {}
        for name, row in methods_table(model, names, images, options.repeats, device):
            results["methods"][name] = row
            save(options.json, results)  # an interrupted run keeps its measurements
        if device == "cuda":
            step = partial(training_step, copy.deepcopy(network), images)
            results["training_step_peak_mb"] = peak_memory(step)
            del step
            print("training_step_peak_mb", results["training_step_peak_mb"], flush=True)
        sites = [name for name in options.sites.split(",") if name]
        for way, within in ways(device).items():
            rates = results.setdefault(f"{way}site_images_per_second", {})
            for name in sites:
                with within():
                    rates[name] = whole_site(model, folder, name)
                tidy(device)
                print(f"{way}site", name, rates[name], flush=True)
        if sites:
            results["per_image_seconds"] = reading_and_scoring(model, folder, options.repeats)
            results["resident_growth_mb"] = resident_growth(model, folder)
        for batch in options.training.split(",") if device == "cuda" and options.training else ():
            recipe = Recipe(options.encoder, batch=int(batch), steps=300)
            rates = results.setdefault("training_images_per_second", {})
            for label, weight in (("", 0.1), (", no universe", 0.0)):
                for way, within in ways(device).items():
                    name = f"batch {batch}{label}{', eager' if way else ''}"
                    with within():
                        rates[name] = training_speed(
                            folder, benchmark, replace(recipe, universe=weight), device
                        )
                    tidy(device)
                    print("training", name, rates[name], flush=True)
            save(options.json, results)
        save(options.json, results)
    report(results)


def save(path: Path | None, results: dict[str, Any]) -> None:
    """Write the results as JSON, if a file was named."""
    if path:
        path.write_text(json.dumps(results, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
