"""Speed and memory of `self-training`: one step, a folder, and an online stream.

    python benchmarks/self_training.py                 # on the GPU, if torch finds one
    python benchmarks/self_training.py --quick         # half a minute on two CPU cores
    python benchmarks/self_training.py --device cpu --encoder light --size 128 --batch 8 --images 32 --steps 200

Three measurements, in this order:

- One step beside the passes that it cannot avoid: three forward passes and one backward pass of the same network, at
  the same batch and precision, recorded in the same way. Both take turns. A block of calls is timed without waiting in
  between, as a folder is learned. The parts of the step are timed as well: the preparation of images, and the rest.
- A folder: all steps, then the answer to every image.
- The online stream: seconds per image around two positions, and the memory that is held there.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttdg.adaptation import adapt
from ttdg.data.transforms import normalise
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph

QUICK = {"encoder": "light", "size": 64, "batch": 4, "images": 16, "steps": 10, "last": 200, "repeats": 5}
WARM_UP = (
    cuda_graph.WARM_UP_CALLS + 2
)  # on a GPU: calls before the capture, the capture itself, and one replay
BLOCK = 5  # calls that are timed together on a GPU
WINDOW = 40  # images over which the speed of the online stream is averaged
ONLINE = {"steps": 1, "draw": 4}  # small options: ten thousand images in minutes


def synchronise(device: str) -> None:
    """Wait until the GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(works: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Return the median time of one call of each function; blocks of calls take turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    warm_up, block = (WARM_UP, BLOCK) if device == "cuda" else (1, 1)
    for work in works.values():
        for _ in range(warm_up):
            work()
    for _ in range(repeats):
        for name, work in works.items():
            synchronise(device)
            start = time.perf_counter()
            for _ in range(block):
                work()
            synchronise(device)
            times[name].append((time.perf_counter() - start) / block)
    return {name: statistics.median(each) for name, each in times.items()}


def plain_passes(adapter: Any) -> Callable[[Tensor], Tensor]:
    """Return three forward passes and one backward pass of the student's network, in the precision of a step.

    The BatchNorm layers are those of the step, with fixed statistics.
    """

    def forward(images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        kind = images.device.type
        with torch.autocast(kind, torch.bfloat16, kind == "cuda", cache_enabled=False):
            return adapter.network(images).float()

    def passes(images: Tensor) -> Tensor:
        adapter.optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            for _ in range(2):
                forward(images)
        with torch.enable_grad():
            loss = forward(images).sum()
        loss.backward()
        return loss.detach()

    return passes


def prepared(adapter: Any) -> list[Tensor]:
    """Return the inputs of one step, as `_learn` prepares them."""
    inputs: list[Tensor] = []
    adapter._replay, replay = lambda step, *tensors: inputs.extend(tensors), adapter._replay
    adapter._learn()
    adapter._replay = replay
    return inputs


def one_step(
    network: torch.nn.Module, site: Tensor, batch: int, repeats: int, device: str
) -> dict[str, float]:
    """Time a step, its parts, and the plain passes."""
    adapter, other = (adapt(network, "self-training", draw=batch) for _ in range(2))
    adapter.memory.add(site)
    inputs, runner = prepared(adapter), cuda_graph.GraphRunner(other._replay.state)
    passes = partial(runner, plain_passes(other), inputs[1])
    rest = partial(adapter._replay, adapter._step, *inputs)
    works = {
        "passes": passes,
        "step": adapter._learn,
        "preparation": partial(prepared, adapter),
        "rest": rest,
    }
    found = {f"{name}_ms": 1000 * value for name, value in seconds(works, repeats, device).items()}
    return found | {"step_over_passes": found["step_ms"] / found["passes_ms"]}


def folder(network: torch.nn.Module, site: Tensor, batch: int, steps: int, device: str) -> dict[str, float]:
    """Time learning a folder and answering it."""
    adapter: Any = adapt(network, "self-training", draw=batch, folder_steps=steps)
    synchronise(device)
    start = time.perf_counter()
    adapter.learn(site.split(4))
    synchronise(device)
    learned = time.perf_counter()
    for images in site.split(4):
        adapter.predict_frozen(images)
    synchronise(device)
    return {"learn_s": learned - start, "answer_s": time.perf_counter() - learned}


def online(network: torch.nn.Module, site: Tensor, last: int, device: str) -> dict[str, float]:
    """Time the online stream around image 100 and around image `last`, in batches of 4."""
    adapter: Any = adapt(network, "self-training", **ONLINE)
    batches, found, seen = site.split(4), {}, 0
    marks = (100, last)
    for start, end in pairwise((0, *(image for mark in marks for image in (mark - WINDOW, mark)))):
        synchronise(device)
        begin = time.perf_counter()
        while seen < end:
            seen += len(adapter(batches[seen // 4 % len(batches)]))
        synchronise(device)
        if end in marks:
            found[f"ms_at_image_{end}"] = 1000 * (time.perf_counter() - begin) / (end - start)
            found[f"stored_mb_at_image_{end}"] = adapter.memory.pixels.nbytes / 2**20
            found[f"allocated_mb_at_image_{end}"] = allocated(device)
    return found


def allocated(device: str) -> float:
    """Return the allocated memory of the GPU, or the peak of resident memory, in MB."""
    if device == "cuda":
        return torch.cuda.memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--size", type=int, default=256, help="side of the images")
    parser.add_argument("--batch", type=int, default=16, help="images of one step")
    parser.add_argument("--images", type=int, default=400, help="images of the folder")
    parser.add_argument("--steps", type=int, default=300, help="steps on the folder")
    parser.add_argument(
        "--last", type=int, default=10_000, help="last image of the online stream (over 140), or 0"
    )
    parser.add_argument("--repeats", type=int, default=10, help=f"timed blocks, of {BLOCK} calls on a GPU")
    parser.add_argument("--quick", action="store_true", help="small network, images and counts")
    parser.add_argument("--json", type=Path, help="file for the results")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args()
    device = options.device

    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(3, options.encoder)).to(device).eval()
    coarse = torch.rand(options.images, 3, 8, 8, device=device)
    site = torch.nn.functional.interpolate(coarse, size=(options.size, options.size), mode="bilinear")
    site = normalise(site, "minmax")
    results: dict[str, Any] = {**vars(options), "json": None, "torch": torch.__version__}
    results |= {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    results |= {"threads": torch.get_num_threads()}
    works: dict[str, Callable[[], dict[str, float]]] = {
        "step": partial(one_step, network, site, options.batch, options.repeats, device),
        "folder": partial(folder, network, site, options.batch, options.steps, device),
    }
    if options.last:
        works["online"] = partial(online, network, site, options.last, device)
    for name, work in works.items():
        results[name] = work()
        print(name, {key: round(value, 3) for key, value in results[name].items()}, flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
