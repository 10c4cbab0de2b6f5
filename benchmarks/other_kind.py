"""Measure whether images of another kind are recognised: photographs of the eye for a polyp model, and the reverse.

    ttdg train -d $TTDG_DATA/fundus -b fundus-128.yaml --sources origa,papila -o models/fundus $SHORT
    ttdg train -d $TTDG_DATA/polyp -b polyp-128.yaml --sources clinicdb,kvasir -o models/polyp $SHORT
    python benchmarks/other_kind.py models/fundus models/polyp --data $TTDG_DATA

with SHORT="--encoder light --steps 300 --batch 8 --universe 0 --accelerator cpu" and the files of the two benchmarks
with `size: 128`. For each model and each site of both benchmarks, 100 images spread over the site: the distance of
single images from the nearest source site (median, and the range of 90 %), the shares beyond the limit of the
fingerprint and beyond the 95 % and 90 % quantiles of simulated hospitals, and the verdict on the site as a whole. The
quantiles are those of 64 simulated hospitals of 16 images each.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from ttdg.checkpoints import load
from ttdg.data import Benchmark, find_sites, load_arrays, load_benchmark, normalise
from ttdg.data.shifts import simulate
from ttdg.safety import Fingerprint, SourceShadow, measure_drift

IMAGES, HOSPITALS, BATCH = 100, 64, 16


def site_images(folder: Path, site: str, benchmark: Benchmark) -> Tensor:
    """Return images in [0, 1], spread over the site."""
    cases = find_sites(folder, [site])[site].cases
    rows = np.linspace(0, len(cases) - 1, min(IMAGES, len(cases))).astype(int)
    return load_arrays([cases[row] for row in rows], benchmark).images.float() / 255


@torch.no_grad()
def measure(model_folder: Path, data: Path, sites: dict[str, list[str]]) -> None:
    model = load(model_folder)
    fingerprint = Fingerprint.from_part(model.parts["fingerprint"])
    shadow, how = SourceShadow(model.network, fingerprint.layers), model.card.benchmark.normalisation

    def embed(images: Tensor) -> Tensor:
        parts = [fingerprint.embed(shadow(normalise(part, how))[1]) for part in images.split(BATCH)]
        return torch.cat(parts)

    found, pools = dict[str, Tensor](), list[Tensor]()
    for kind, names in sites.items():
        benchmark = load_benchmark(kind).to_dict() | {"size": model.card.benchmark.size}
        for name in names:
            images = site_images(data / kind, name, Benchmark.from_dict(benchmark))
            home = kind == model.card.benchmark.name and name in model.card.sources
            pools += [images] if home else []
            found[f"{kind} {name}{' (source)' if home else ''}"] = embed(images)
    generator, moved = Generator().manual_seed(1), list[Tensor]()
    for number in range(HOSPITALS):
        pool = pools[number % len(pools)]
        images = pool[torch.randint(len(pool), (BATCH,), generator=generator)]
        labels = torch.zeros(BATCH, *images.shape[2:], dtype=torch.long)
        moved.append(embed(simulate(images, labels, generator, group=BATCH, anatomy=False)[0]))
    simulated = fingerprint.overall(torch.cat(moved), 1)
    limits = [fingerprint.foreign_image, float(simulated.quantile(0.95)), float(simulated.quantile(0.9))]
    print(f"model of {model.card.benchmark.name}: limit {limits[0]:.2f}, simulated hospitals {limits[1]:.2f} (95 %), "
          f"{limits[2]:.2f} (90 %)")  # fmt: skip
    for name, embedded in found.items():
        distance = fingerprint.overall(embedded, 1)
        low, middle, high = (float(distance.quantile(q)) for q in (0.05, 0.5, 0.95))
        shares = ", ".join(f"{100 * float((distance > limit).float().mean()):.0f} %" for limit in limits)
        drift = measure_drift(fingerprint, [embedded])
        assert drift is not None
        print(
            f"  {name}: {middle:.2f} [{low:.2f}, {high:.2f}]; beyond the limits {shares}; site: {drift.verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="folder with the benchmark folders")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sites = {kind: sorted(find_sites(options.data / kind)) for kind in ("fundus", "polyp")}
    for folder in options.models:
        measure(folder, options.data, sites)


if __name__ == "__main__":
    main()
