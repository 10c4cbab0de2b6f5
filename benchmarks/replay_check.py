"""Do recorded steps give what plain calls give? On a GPU; seconds.

    python benchmarks/replay_check.py

The same stream of batches runs plainly twice and recorded once: two batches of another shape, one of NaN, and a reset
are among them. GPUs do not add up in one order, so the plain runs differ too, and their difference is the measure.
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
from ttdg.evaluation.cost import counted_passes
from ttdg.networks import NetworkSpec, Segmenter, cuda_graph
from ttdg.prior import prior_for
from ttdg.training import Recipe, make_fabric
from ttdg.training.learner import Learner
from ttdg.training.train import _set_up, build

LABELS, SIZE = 3, 256
RESET, NAN, OTHER = 9, 7, (2, 11)  # places in the stream
LENGTH = 14
JUDGED = ("judge", "universe")


def batches(size: int, nan: bool = True) -> list[Tensor]:
    """Each batch is smooth blobs, so that answers are no mere noise."""
    generator = torch.Generator("cuda").manual_seed(1)
    made = []
    for number in range(LENGTH):
        b = size - 1 if number in OTHER else size
        coarse = torch.randn(b, 3, 16, 16, device="cuda", generator=generator)
        made.append(torch.nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear"))
        if nan and number == NAN:
            made[-1] = torch.full_like(made[-1], torch.nan)
    return made


def judged(network: Segmenter) -> Model:
    """With a prior and a judge, fitted for a moment to noise."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (8, 3, SIZE, SIZE), generator=generator).to(torch.uint8)
    arrays = Arrays(images, (images[:, 0] // 100).to(torch.uint8), tuple("abcdefgh"))
    names, regions = ("background", "rim", "cup"), {"disc": (1, 2), "cup": (2,)}
    benchmark = Benchmark("noise", names, Exact({i: i for i in range(LABELS)}), regions, "minmax", SIZE)
    prior, site = prior_for(network, LABELS), {"site": arrays}
    judge = fit_judge(network, prior, site, site, benchmark, draws=1, mixing_steps=1)
    return Model(network, ModelCard(network.spec, benchmark), {"prior": prior.to_part(), "judge": judge})


def adapted(network: Segmenter | Model, method: str, size: int, recorded: bool) -> tuple[list[Tensor], str]:
    """All answers and losses, the way the weights went, and what is wrong with how they were made."""
    wrong = []
    with nullcontext() if recorded else cuda_graph.disabled(), counted_passes() as passes:
        adapter: Any = adapt(network, method)
        source = {name: value.clone() for name, value in adapter.network.state_dict().items()}
        results = []
        for number, images in enumerate(batches(size)):
            if number == RESET:
                adapter.reset()
                now = adapter.network.state_dict()
                if not all(torch.equal(now[name], value) for name, value in source.items()):
                    wrong.append("reset is not exact")
            logits = adapter(images)
            if number != NAN:
                results.append(logits)
                results += [adapter.loss.reshape(1)] if hasattr(adapter, "loss") else []
    forwards = 1 if method in JUDGED else METHODS[method].forwards  # they stack their readings into one
    expected = forwards * LENGTH, METHODS[method].backwards * LENGTH
    if (passes.forwards, passes.backwards) != expected:
        wrong.append(f"counted {passes}, not {expected}")
    if recorded and not is_recorded(adapter._replay):
        wrong.append("was not recorded")
    return [*results, moved(source, adapter.network)], "; ".join(wrong)


def trained(recipe: Recipe, recorded: bool) -> tuple[list[Tensor], str]:
    """The losses of some steps, and the way the weights went."""
    with nullcontext() if recorded else cuda_graph.disabled():
        torch.manual_seed(0)
        network = build(recipe, LABELS)
        prior = prior_for(network, LABELS) if recipe.universe else None
        learner = Learner(network, prior, recipe.loss, recipe.universe)
        update = _set_up(make_fabric(recipe, "cuda"), learner, recipe)
        start = {name: value.clone() for name, value in learner.state_dict().items()}
        results = []
        for number, images in enumerate(batches(recipe.batch, nan=False)):
            labels = (images[:, 0] > 0).long() + (images[:, 0] > 1).long()
            results.append(update(images, labels, 1 - number / LENGTH).reshape(1))
        wrong = "was not recorded" if recorded and not is_recorded(update._replay) else ""
        return [*results, moved(start, learner)], wrong


def moved(start: dict[str, Tensor], network: torch.nn.Module) -> Tensor:
    """How far each number has gone, weights and running statistics, as one vector."""
    return torch.cat(
        [(value - start[name]).flatten().float() for name, value in network.state_dict().items()]
    )


def furthest(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest relative difference ‖x − y‖/‖y‖ of an answer, a loss or the weights' way; NaN where one is NaN."""
    apart = [(x - y).norm() / y.norm().clamp(min=1e-6) for x, y in zip(a, b, strict=True)]
    return torch.stack(apart).amax().item()


def check(name: str, run: Callable[[bool], tuple[list[Tensor], str]]) -> bool:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (plain, wrong), (again, _), (recorded, more) = run(False), run(False), run(True)
    noise, apart = furthest(again, plain), furthest(recorded, plain)
    notes = [note for note in (wrong, more) if note]
    notes += [
        str(w.message) for w in said if "unrecorded" in str(w.message) or "capturable" in str(w.message)
    ]
    good = apart <= max(20 * noise, 2e-2) and not notes  # NaN is not good
    print(
        f"{'PASS' if good else 'FAIL'}  {name}: recorded against plain {apart:.2e}, plain against plain {noise:.2e}, "
        f"{time.perf_counter() - start:.1f} s {'; '.join(notes)}",
        flush=True,
    )
    return good


class Waiting(torch.nn.Module):
    """A network that asks the device for a value, which no recording can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, LABELS, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images) * (2.0 if images.mean().item() > 0 else 1.0)


def refused(size: int) -> bool:
    """What cannot be recorded runs all the same, with one warning, and leaves the device as it was."""
    network, images = Waiting().cuda(), batches(size, nan=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        adapter: Any = adapt(network, "source")
        answers = [adapter(x) for x in images]
    with cuda_graph.disabled():
        good = all(torch.equal(a, adapter(x)) for a, x in zip(answers, images, strict=True))
    good &= sum("unrecorded" in str(w.message) for w in said) == 1
    good &= torch.cuda.current_stream() == torch.cuda.default_stream()
    good &= bool(torch.rand(9, device="cuda").isfinite().all())
    print(f"{'PASS' if good else 'FAIL'}  a network that waits: {[str(w.message) for w in said]}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: nothing is recorded here, and there is nothing to check")
        return
    torch.backends.cudnn.deterministic = True  # less noise to hide in
    torch.manual_seed(0)
    network = Segmenter(NetworkSpec(LABELS, options.encoder)).cuda().eval()
    good = [
        check(method, lambda recorded, m=method: adapted(network, m, options.batch, recorded))
        for method in ("source", "norm", "alpha-bn", "tent", "domainadaptor", "vptta")
    ]
    model = judged(network)
    good += [
        check(method, lambda recorded, m=method: adapted(model, m, options.batch, recorded))
        for method in JUDGED
    ]
    for name, universe, optimiser in (
        ("training", 0.1, "sgd"),
        ("training, AdamW, no universe", 0.0, "adamw"),
    ):
        recipe = Recipe(
            options.encoder, batch=options.batch, universe=universe, optimiser=optimiser, precision="32"
        )
        good.append(check(name, lambda recorded, r=recipe: trained(r, recorded)))
    recipe = Recipe(options.encoder, batch=options.batch)
    good.append(check("training, bf16", lambda recorded: trained(recipe, recorded)))
    good.append(refused(options.batch))
    good.append(check("source again", lambda recorded: adapted(network, "source", options.batch, recorded)))
    print("PASS" if all(good) else "FAIL")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
