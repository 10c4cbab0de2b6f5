"""Checks on a GPU that replayed CUDA graphs give the same results as direct calls. Takes seconds.

    python benchmarks/replay_check.py

The same stream of batches runs twice with direct calls and once with CUDA graphs. It contains two batches of another
shape, a batch of NaN, and a reset. Sums on a GPU have no fixed order, so the two direct runs differ as well. The
difference between replays and direct calls is compared with the difference between the direct runs.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from adapt import is_recorded
from ttdg.adaptation import METHODS, adapt
from ttdg.adaptation.judge.fit import fit_judge
from ttdg.checkpoints import Model, ModelCard
from ttdg.data import Arrays, Benchmark, Exact
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph, level_channels
from ttdg.networks.passes import counted_passes
from ttdg.prior import prior_for
from ttdg.training import Recipe, make_fabric
from ttdg.training.learner import Learner
from ttdg.training.loop import build_network, set_up

LABELS, SIZE = 3, 256
RESET, NAN, OTHER = 9, 7, (2, 11)  # positions in the stream: reset, NaN batch, batches of another shape
LENGTH = 14
JUDGED = ("judge", "universe-choice")


def batches(size: int, nan: bool = True) -> list[Tensor]:
    """Batches of smooth random images, so that predictions are not mere noise."""
    generator = torch.Generator("cuda").manual_seed(1)
    stream = []
    for number in range(LENGTH):
        b = size - 1 if number in OTHER else size
        coarse = torch.randn(b, 3, 16, 16, device="cuda", generator=generator)
        stream.append(torch.nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear"))
        if nan and number == NAN:
            stream[-1] = torch.full_like(stream[-1], torch.nan)
    return stream


def with_judge(network: Segmenter) -> Model:
    """The network with a prior and a judge that are fitted to noise in a few steps."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (8, 3, SIZE, SIZE), generator=generator).to(torch.uint8)
    arrays = Arrays(images, (images[:, 0] // 100).to(torch.uint8), tuple("abcdefgh"))
    names, regions = ("background", "rim", "cup"), {"disc": (1, 2), "cup": (2,)}
    benchmark = Benchmark("noise", names, Exact({i: i for i in range(LABELS)}), regions, "minmax", SIZE)
    device, site = next(network.parameters()).device, {"site": arrays}
    prior = prior_for(level_channels(network), LABELS).to(device)
    judge = fit_judge(network, prior, site, site, benchmark, draws=1, mixing_steps=1, controls=True)
    return Model(network, ModelCard(network.spec, benchmark), {"prior": prior.to_part(), "judge": judge})


def adapted(network: Segmenter | Model, method: str, size: int, graphs: bool) -> tuple[list[Tensor], str]:
    """Logits and losses of all batches, the change of the weights, and a description of failed checks."""
    failed = []
    with nullcontext() if graphs else cuda_graph.disabled(), counted_passes() as passes:
        adapter: Any = adapt(network, method)
        source = {name: value.clone() for name, value in adapter.network.state_dict().items()}
        results = []
        for number, images in enumerate(batches(size)):
            if number == RESET:
                adapter.reset()
                now = adapter.network.state_dict()
                if not all(torch.equal(now[name], value) for name, value in source.items()):
                    failed.append("reset is not exact")
            logits = adapter(images)
            if number != NAN:
                results.append(logits)
                results += [adapter.loss.reshape(1)] if hasattr(adapter, "loss") else []
    forwards = 1 if method in JUDGED else METHODS[method].forwards  # they stack their readings in one pass
    expected = forwards * LENGTH, METHODS[method].backwards * LENGTH
    if (passes.forwards, passes.backwards) != expected:
        failed.append(f"counted {passes}, not {expected}")
    if graphs and not is_recorded(adapter._replay):
        failed.append("was not captured")
    return [*results, weight_change(source, adapter.network)], "; ".join(failed)


def trained(recipe: Recipe, graphs: bool) -> tuple[list[Tensor], str]:
    """Losses of some training steps, the change of the weights, and a description of failed checks."""
    with nullcontext() if graphs else cuda_graph.disabled():
        torch.manual_seed(0)
        network = build_network(recipe, LABELS)
        prior = prior_for(level_channels(network), LABELS) if recipe.universe else None
        learner = Learner(network, prior, recipe.loss, recipe.universe)
        update = set_up(make_fabric(recipe, "cuda"), learner, recipe)
        start = {name: value.clone() for name, value in learner.state_dict().items()}
        results = []
        for number, images in enumerate(batches(recipe.batch, nan=False)):
            labels = (images[:, 0] > 0).long() + (images[:, 0] > 1).long()
            results.append(update(images, labels, 1 - number / LENGTH).reshape(1))
        failed = "was not captured" if graphs and not is_recorded(update._replay) else ""
        return [*results, weight_change(start, learner)], failed


def weight_change(start: dict[str, Tensor], network: torch.nn.Module) -> Tensor:
    """Change of all weights and running statistics, as one vector."""
    return torch.cat(
        [(value - start[name]).flatten().float() for name, value in network.state_dict().items()]
    )


def largest_difference(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest relative difference ‖x − y‖/‖y‖ of logits, losses and weight changes; NaN if one is NaN."""
    differences = [(x - y).norm() / y.norm().clamp(min=1e-6) for x, y in zip(a, b, strict=True)]
    return torch.stack(differences).amax().item()


def check(name: str, run: Callable[[bool], tuple[list[Tensor], str]]) -> bool:
    """Compare two direct runs and one with CUDA graphs, print the result, and return whether it is good."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (direct, failed), (again, _), (replayed, failed_replay) = run(False), run(False), run(True)
    noise, difference = largest_difference(again, direct), largest_difference(replayed, direct)
    notes = [note for note in (failed, failed_replay) if note]
    notes += [
        str(w.message) for w in caught if "CUDA graph" in str(w.message) or "capturable" in str(w.message)
    ]
    good = difference <= max(20 * noise, 2e-2) and not notes  # False for NaN
    print(
        f"{'PASS' if good else 'FAIL'}  {name}: replayed against direct {difference:.2e}, "
        f"direct against direct {noise:.2e}, "
        f"{time.perf_counter() - start:.1f} s {'; '.join(notes)}",
        flush=True,
    )
    return good


class Synchronising(torch.nn.Module):
    """A network that reads a value from the device, which a CUDA graph cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, LABELS, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits that are doubled if the mean of the images is positive."""
        return self.layer(images) * (2.0 if images.mean().item() > 0 else 1.0)


def check_fallback(size: int) -> bool:
    """A network that cannot be captured runs with one warning, and leaves the device in a usable state."""
    network, images = Synchronising().cuda(), batches(size, nan=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapter: Any = adapt(network, "source")
        logits = [adapter(x) for x in images]
    with cuda_graph.disabled():
        good = all(torch.equal(a, adapter(x)) for a, x in zip(logits, images, strict=True))
    good &= sum("CUDA graph" in str(w.message) for w in caught) == 1
    good &= torch.cuda.current_stream() == torch.cuda.default_stream()
    good &= bool(torch.rand(9, device="cuda").isfinite().all())
    print(
        f"{'PASS' if good else 'FAIL'}  a network that synchronises: {[str(w.message) for w in caught]}",
        flush=True,
    )
    return good


def main() -> None:
    """Run all checks; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: CUDA graphs cannot be checked")
        return
    torch.backends.cudnn.deterministic = True  # less noise, so that smaller errors are detected
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(LABELS, options.encoder)).cuda().eval()
    good = [
        check(method, lambda graphs, m=method: adapted(network, m, options.batch, graphs))
        for method in ("source", "norm", "alpha-bn", "tent", "domainadaptor", "vptta")
    ]
    model = with_judge(network)
    good += [
        check(method, lambda graphs, m=method: adapted(model, m, options.batch, graphs)) for method in JUDGED
    ]
    for name, universe, optimiser in (
        ("training", 0.1, "sgd"),
        ("training, AdamW, no universe", 0.0, "adamw"),
    ):
        recipe = Recipe(
            options.encoder, batch=options.batch, universe=universe, optimiser=optimiser, precision="32"
        )
        good.append(check(name, lambda graphs, r=recipe: trained(r, graphs)))
    recipe = Recipe(options.encoder, batch=options.batch)
    good.append(check("training, bf16", lambda graphs: trained(recipe, graphs)))
    good.append(check_fallback(options.batch))
    good.append(check("source again", lambda graphs: adapted(network, "source", options.batch, graphs)))
    print("PASS" if all(good) else "FAIL")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
