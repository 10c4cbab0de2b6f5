"""Throughput of decoding, of batches from files and of batches from a pack, compared with a network's.

    python benchmarks/data.py                                    # generated images
    python benchmarks/data.py --root DATA/polyp --benchmark polyp --site kvasir --network

Each line gives images with masks per second (best of three) and the ratio to the slowest line. `--network` adds
a ResNet-50 U-Net on the GPU, or on the CPU if there is none. If the network is faster than decoding, decoding is
the bottleneck.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ttdg.data import (
    Arrays,
    Benchmark,
    Case,
    Normalisation,
    Site,
    find_sites,
    load_arrays,
    load_benchmark,
    open_pack,
    pack_site,
    stream,
    to_batch,
)
from ttdg.data.threads import available_cores
from ttdg.networks import NetworkSpec, Segmenter


def main() -> None:
    options = arguments()
    benchmark = load_benchmark(options.benchmark, options.root)
    with tempfile.TemporaryDirectory() as scratch:
        root = options.root or generate_site(Path(scratch) / "generated", options.cases, options.side)
        sites = find_sites(root, [options.site] if options.site else None)
        site = Site("first", next(iter(sites.values())).cases[: options.cases])
        cases = site.cases
        width, height = Image.open(cases[0].image).size
        print(
            f"{len(cases)} cases, the first {width} × {height}, to {benchmark.size}²; {available_cores()} cores"
        )

        rates = {}
        for workers in sorted({1, 2, available_cores()}):
            decode = partial(load_arrays, cases, benchmark, workers)
            rates[f"decode into memory, {workers} threads"] = rate(decode, len(cases))
        read = partial(stream_through, cases, benchmark, 4)
        rates["stream in batches of 4, normalised"] = rate(read, len(cases))
        pack_site(site, benchmark, Path(scratch))
        arrays = open_pack(site, benchmark, Path(scratch))
        take = partial(random_batches, arrays, 8)
        rates["random batches of 8 from a pack"] = rate(take, len(cases))
        rates["the same, normalised"] = rate(partial(take, benchmark.normalisation), len(cases))
        if options.network:
            rates |= network_rates(benchmark.size)
        slowest = min(rates.values())
        for name, value in rates.items():
            print(f"{name:42s} {value:10,.1f} images/s {value / slowest:10,.1f} ×")


def rate(work: Callable[[], object], images: int) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return images / min(times)


def stream_through(cases: Sequence[Case], benchmark: Benchmark, size: int) -> None:
    for _ in stream(cases, benchmark, size):
        pass


def random_batches(arrays: Arrays, size: int, how: Normalisation | None = None) -> None:
    order = torch.randperm(len(arrays.cases))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        names = tuple(arrays.cases[row] for row in rows.tolist())
        batch = Arrays(arrays.images[rows], None if arrays.masks is None else arrays.masks[rows], names)
        if how:
            to_batch(batch, how)


def network_rates(size: int) -> dict[str, float]:
    """Return images per second of a ResNet-50 U-Net in prediction and training; bfloat16 on a GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    batch = 32 if device == "cuda" else 4
    network = Segmenter(NetworkSpec(labels=2)).to(device)
    images = torch.rand(batch, 3, size, size, device=device)

    steps = 20 if device == "cuda" else 1

    def work(train: bool) -> None:
        for _ in range(steps):
            with torch.autocast(device, dtype, enabled=device == "cuda"), torch.set_grad_enabled(train):
                logits = network(images)
            if train:
                logits.float().mean().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    work(True)  # warm up
    name = f"ResNet-50 U-Net on {device}"
    return {
        f"{name}, prediction": rate(partial(work, False), steps * batch),
        f"{name}, training": rate(partial(work, True), steps * batch),
    }


def generate_site(root: Path, cases: int, side: int) -> Path:
    """Write images of smooth colour with noise, which take about as long to decode as photographs."""
    generator = np.random.default_rng(0)
    for part in ("images", "masks"):
        (root / "site" / part).mkdir(parents=True)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    for number in range(cases):
        coarse = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC), float)
        noisy = np.clip(smooth + generator.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(root / "site" / "images" / f"{number:05d}.jpg", quality=90)
        disc = (x - 0.1) ** 2 + y**2 < generator.uniform(0.05, 0.5)
        Image.fromarray(disc).save(root / "site" / "masks" / f"{number:05d}.png")
    return root


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path)
    parser.add_argument("--benchmark", default="polyp")
    parser.add_argument("--site")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--side", type=int, default=256, help="of the generated images, in pixels")
    parser.add_argument("--network", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
