"""Measure the memory of `ttdg predict` over a folder of many small drawn images.

    python benchmarks/predict_many.py --images 10000
    python benchmarks/predict_many.py --images 4000 --methods universe

Each method answers the folder in a process of its own, in the online stream and in batches of 16. The images are discs
of 32 × 32 pixels. The network is the light one without training; its prior, judge and fingerprint are fitted for a few
steps, so that every check runs. `self-training` and `universe` take one step a batch, and their memory of 512 images is
full long before image 1,000. Printed are the resident memory after each tenth of the images and the peak. Exit status 1
if the peak after all images is more than 40 MB above the peak after the first tenth.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from fuzz_world import draw_discs, draw_images, load_model, save_model

GROWTH, BATCH = 40e6, 16  # bytes; images
OPTIONS = {"self-training": {"steps": 1, "draw": 4}, "universe": {"steps": 1, "draw": 4}}


def make_model(folder: Path) -> Path:
    """Write an untrained network with all parts that the methods and the checks of `predict` use."""
    from ttdg.adaptation.universe.fit import fit_judges
    from ttdg.checkpoints import save_part
    from ttdg.data import find_sites, load_benchmark, load_sources
    from ttdg.safety import fit_fingerprint
    from ttdg.training.prior_fit import fit_prior

    discs = draw_discs(folder / "discs", 0, 12)
    model, benchmark = save_model(discs, folder / "model", 0), load_benchmark(None, discs)
    sources = load_sources(find_sites(discs, ["east", "south"]), benchmark)
    prior = fit_prior(model.network, sources.train, benchmark, steps=2)
    common = sources.train, sources.held_out, benchmark
    judge = fit_judges(model.network, prior, *common, draws=1, mixing_steps=1, hospitals=1, learning_steps=1)
    fingerprint = fit_fingerprint(model.network, *common, hospitals=8)
    for name, part in (("prior", prior.to_part()), ("judge", judge), ("fingerprint", fingerprint)):
        save_part(folder / "model", name, part, model.card.sha256)
    return folder / "model"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def answer(model: Path, images: Path, out: Path, method: str) -> None:
    """Answer the folder in this process and print the memory as JSON."""
    from ttdg.newsite import predict

    torch.set_num_threads(1)
    found, began = list[tuple[int, int, int]](), time.monotonic()

    def progress(done: int, total: int) -> None:
        if done >= (len(found) + 1) * total / 10:
            found.append((done, resident(), peak()))

    outcome = predict(
        load_model(model), images, out, method=method, options=OPTIONS.get(method), stream="online", batch=BATCH,
        overlays=False, workers=1, progress=progress,
    )  # fmt: skip
    values = {"done": outcome.done, "alone": len(outcome.unusual), "found": found, "peak": peak()}
    print(json.dumps({**values, "seconds": time.monotonic() - began}))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--methods", nargs="+", default=["source", "judge", "universe"])
    parser.add_argument("--answer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        model, images, out, method = options.answer
        answer(Path(model), Path(images), Path(out), method)
        return 0
    worst = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model, images = make_model(folder), draw_images(folder / "images", options.images)
        for method in options.methods:
            command = [
                sys.executable,
                __file__,
                "--answer",
                str(model),
                str(images),
                str(folder / method),
                method,
            ]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            values = json.loads(printed.splitlines()[-1])
            first = values["found"][0][2]
            worst = max(worst, values["peak"] - first)
            tenths = " ".join(f"{now / 1e6:.0f}" for _, now, _ in values["found"])
            print(
                f"{method}: {values['done']:,} answered, {values['alone']:,} of them alone, {values['seconds']:.0f} s; "
                f"resident after each tenth {tenths} MB; peak {first / 1e6:.0f} MB after {values['found'][0][0]:,} "
                f"images, {values['peak'] / 1e6:.0f} MB after all",
                flush=True,
            )
    return int(worst > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
