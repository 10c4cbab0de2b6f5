"""Measure what finite but hostile images do to each method: Dice of good images after them, against a fresh adapter.

    python benchmarks/hostile.py                      # every method that the demo model has the parts for
    python benchmarks/hostile.py --methods dua tent --kinds black stripes
    python benchmarks/hostile.py --methods dpl --gate
    python benchmarks/hostile.py --real $TTDG_DATA    # images of real sites that are taken for frames without content

The demo model answers twelve drawn images of a site that it was not trained on, in batches of four: with a fresh
adapter, and after 120 hostile images in batches of four, one kind after the other. The images reach the methods as
tensors, so nothing that `ttdg predict` sets aside is set aside here; with `--gate` the gate is around the method. Exit
status 1 if a method ends more than 10 Dice below a fresh one.
"""

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

import ttdg
from ttdg.adaptation import METHODS, build_adapter
from ttdg.adaptation.build import seed_all
from ttdg.adaptation.empty_frames import shows_nothing
from ttdg.adaptation.gate import gate
from ttdg.checkpoints import Model
from ttdg.data import builtin_benchmarks, find_sites, load_arrays, load_benchmark, normalise
from ttdg.data.synthetic.write import write_benchmark
from ttdg.errors import UserError
from ttdg.metrics import region_probabilities
from ttdg.safety.policy import GatePolicy
from ttdg.types import Regions

HOSTILE, BATCH, LOSS = 120, 4, 10.0  # images; images; Dice
MOST = 700  # images of a real site
SITE = "summit"  # a drawn site that the demo model was not trained on
KINDS = ("black", "grey", "saturated", "noise", "stripes", "inverted", "dark", "large")


def hostile_images(kind: str, like: Tensor, seed: int) -> Tensor:
    """Return a batch of hostile images, in the range that the network is given."""
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return {
        "black": torch.zeros_like(like),
        "grey": torch.full_like(like, 0.5),
        "saturated": torch.full_like(like, 255.0),
        "noise": noise,
        "stripes": (torch.arange(like.shape[-1]) // 8 % 2).float().expand(like.shape),
        "inverted": 1 - like,
        "dark": 0.01 * like,
        "large": 1e4 * noise,
    }[kind]


def mean_dice(logits: Tensor, masks: Tensor, regions: Regions) -> float:
    """Return the mean Dice over images and regions; a region that is absent from both counts as 1."""
    found = region_probabilities(logits, regions) >= 0.5
    true = torch.stack([torch.isin(masks, torch.tensor(list(members))) for members in regions.values()], 1)
    both, total = (found & true).sum((2, 3)), found.sum((2, 3)) + true.sum((2, 3))
    return 100 * float((2 * both / total.clamp(min=1)).where(total > 0, 1.0).mean())


def good_images(model: Model) -> tuple[Tensor, Tensor]:
    """Return drawn images as the network is given them, and their masks."""
    with tempfile.TemporaryDirectory() as folder:
        root = write_benchmark(Path(folder) / "data", "fundus", 3 * BATCH)
        arrays = load_arrays(find_sites(root, [SITE])[SITE].cases, load_benchmark(None, root))
    assert arrays.masks is not None
    return normalise(arrays.images.float() / 255, model.card.benchmark.normalisation), arrays.masks.long()


def measure(
    model: Model, name: str, kinds: list[str], images: Tensor, masks: Tensor, gated: bool
) -> tuple[float, float]:
    """Return the Dice of good images with a fresh adapter, and after the hostile images."""
    found = []
    for before in (0, HOSTILE // BATCH):
        seed_all(0)
        adapter = build_adapter(model, name, {})
        if gated:
            adapter = gate(adapter, model, model.card.benchmark.regions, GatePolicy(), METHODS[name].memory)
        for number in range(before):
            adapter(hostile_images(kinds[number % len(kinds)], images[:BATCH], number))
        logits = torch.cat([adapter(batch) for batch in images.split(BATCH)])
        found.append(mean_dice(logits, masks, model.card.benchmark.regions))
    return found[0], found[1]


def count_empty(data: Path) -> int:
    """Print, for each real site, how many images are taken for frames that show nothing; return the number of all."""
    total = 0
    for folder in sorted(path for path in data.iterdir() if path.name in builtin_benchmarks()):
        benchmark = load_benchmark(folder.name)
        for name, site in find_sites(folder).items():
            rows = torch.linspace(0, len(site.cases) - 1, min(MOST, len(site.cases))).long().tolist()
            found = 0
            for part in torch.tensor(rows).split(50):
                arrays = load_arrays([site.cases[row] for row in part.tolist()], benchmark)
                images = normalise(arrays.images.float() / 255, benchmark.normalisation)
                found += int(shows_nothing(images).sum())
            total += found
            print(f"{folder.name} {name}: {found} of {len(rows)}", flush=True)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--gate", action="store_true", help="put the gate around each method")
    parser.add_argument(
        "--real", type=Path, help="a folder with benchmark folders: count, and measure nothing else"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.real:
        return int(count_empty(options.real) > 0)
    warnings.simplefilter("ignore")
    model, worst = ttdg.load("demo"), 0.0
    images, masks = good_images(model)
    for name in options.methods:
        began = time.monotonic()
        try:
            fresh, after = measure(model, name, options.kinds, images, masks, options.gate)
        except UserError as error:
            print(f"{name}: not measured ({error})")
            continue
        worst = max(worst, fresh - after)
        print(
            f"{name}: fresh {fresh:.1f}, after {after:.1f}, difference {after - fresh:+.1f}; "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    return int(worst > LOSS)


if __name__ == "__main__":
    sys.exit(main())
