"""Time of Dice, E_φ and S_α of many images: ours in batches, pysodmetrics image by image, on the same cores.

python benchmarks/metrics.py --images 1000 --size 256 --threads 1
"""

import argparse
import statistics
import time
from collections.abc import Callable

import py_sod_metrics as sod  # type: ignore[import-untyped]
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ttdg.metrics import Means, aggregate, score_regions


def discs(images: int, size: int) -> tuple[Tensor, Tensor]:
    """Soft, noisy, displaced predictions of discs, and the true discs."""
    generator = torch.Generator().manual_seed(0)
    line = torch.arange(size) / size
    centre = 0.3 + 0.4 * torch.rand(images, 2, 1, 1, generator=generator)
    radius = 0.05 + 0.2 * torch.rand(images, 1, 1, generator=generator)
    shift = 0.02 * torch.randn(images, 2, 1, 1, generator=generator)

    def depth(centre: Tensor) -> Tensor:
        return radius - ((line[:, None] - centre[:, 0]) ** 2 + (line - centre[:, 1]) ** 2).sqrt()

    noise = torch.randn(images, size, size, generator=generator)
    return torch.sigmoid(40 * depth(centre + shift) + noise)[:, None], (depth(centre) > 0)[:, None]


def ours(probabilities: Tensor, truth: Tensor, batch: int) -> Means:
    """Mean scores by `ttdg.metrics`."""
    batches = zip(torch.split(probabilities, batch), torch.split(truth, batch), strict=True)
    return aggregate(score_regions(*pair) for pair in batches)


def theirs(probabilities: Tensor, truth: Tensor) -> Means:
    """Mean scores by pysodmetrics."""
    handler = sod.DICEHandler(with_dynamic=False, with_adaptive=False, with_binary=True)
    overlap, alignment, structure = sod.FmeasureV2({"dice": handler}), sod.Emeasure(), sod.Smeasure()
    for p, g in zip(probabilities[:, 0].numpy(), truth[:, 0].numpy(), strict=True):
        for measure in (overlap, alignment, structure):
            measure.step(p, g, normalize=False)
    means = (
        overlap.get_results()["dice"]["binary"],
        alignment.get_results()["em"]["curve"].max(),
        structure.get_results()["sm"],
    )
    return Means(len(probabilities), *(torch.tensor([float(mean)], dtype=torch.float64) for mean in means))


def timed(evaluate: Callable[[], Means]) -> tuple[float, Means]:
    """Seconds and result of one call."""
    start = time.perf_counter()
    means = evaluate()
    return time.perf_counter() - start, means


def main() -> None:
    """Time both on the same images and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("images", 1000), ("size", 256), ("threads", 1), ("batch", 32), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    maps = discs(arguments.images, arguments.size)
    ours(maps[0][:32], maps[1][:32], arguments.batch)  # warm up
    pairs = [
        (timed(lambda: theirs(*maps)), timed(lambda: ours(*maps, arguments.batch)))
        for _ in range(arguments.rounds)
    ]
    report(arguments, pairs)


def report(
    arguments: argparse.Namespace, rounds: list[tuple[tuple[float, Means], tuple[float, Means]]]
) -> None:
    """Print times, scores and the ratio of times; raises if the scores differ."""
    table = Table(title=f"{arguments.images} images of {arguments.size}², {arguments.threads} thread(s)")
    for column in ("", "ms per image", "Dice", "E max", "S"):
        table.add_column(column, justify="right" if column else "left")
    for name, runs in zip(("pysodmetrics", "ttdg"), zip(*rounds, strict=True), strict=True):
        median, means = statistics.median(seconds for seconds, _ in runs), runs[0][1]
        values = (f"{float(mean):.6f}" for mean in (means.dice, means.alignment, means.structure))
        table.add_row(name, f"{1000 * median / arguments.images:.3f}", *values)
    ratio = statistics.median(peer[0] / our[0] for peer, our in rounds)
    (_, peer), (_, our) = rounds[0]
    for field in ("dice", "alignment", "structure"):
        torch.testing.assert_close(getattr(our, field), getattr(peer, field), rtol=0, atol=1e-5)
    verdict = (
        f"{ratio:.1f} times as fast, median of {len(rounds)} rounds (target: 5); the scores agree to 1e-5."
    )
    Console().print(table, verdict)


if __name__ == "__main__":
    main()
