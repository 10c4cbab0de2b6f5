"""The demo: a model trained at four drawn hospitals is tested at a fifth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ttdg.checkpoints import Model, load
from ttdg.data import Benchmark, Site, find_sites, load_arrays, load_benchmark
from ttdg.data.synthetic import SITES, write_benchmark
from ttdg.evaluation.evaluate import Evaluation
from ttdg.evaluation.records import write_wide
from ttdg.evaluation.site import Setting, benchmark_for_model, evaluate_site
from ttdg.report.figures.panels import Panel, draw_panels, write_demo_page
from ttdg.report.terminal import Conclusion, conclude, summarise

BATCH = 8
SHOWN = ("source", "norm", "tent", "judge", "universe")
RECOMMENDED = "universe"  # the method of the conclusion, chosen before the scores: a whole site is at hand
FOLDER = ("universe",)  # methods that learn the whole site before they answer; the others adapt online
UNSEEN = 7  # seed of the demo's images; the embedded model was trained on images of seed 0


@dataclass(frozen=True)
class Demo:
    """The evaluations of the demo, and the files that show them."""

    evaluations: Sequence[Evaluation]
    target: str
    conclusion: Conclusion
    data: Path  # the drawn hospitals
    page: Path
    picture: Path


def run_demo(
    out: Path,
    methods: Sequence[str] = SHOWN,
    cases: int = 32,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int], None] = lambda done: None,
) -> Demo:
    """Draw the hospitals, score every method at each of them, and write a table, a picture and a page to `out`."""
    model = load("demo")
    target = next(site for site in SITES if site not in model.card.sources)
    say(f"drawing five synthetic hospitals, {cases} images each")
    data = write_benchmark(out / "data", "fundus", cases, seed=UNSEEN)
    benchmark, sites = load_benchmark(None, data), find_sites(data)
    say(
        f"scoring {', '.join(methods)} at the four source hospitals and at {target}, which the model never saw"
    )
    jobs = [(site, method) for site in _target_last(sites, target) for method in methods]
    evaluations, answers = [], dict[str, dict[str, np.ndarray]]()
    for number, (site, method) in enumerate(jobs, 1):
        setting = Setting(site.name, method, "folder" if method in FOLDER else "online", BATCH)
        maps: list[np.ndarray] = []
        evaluations.append(
            evaluate_site(model, site, benchmark, setting, answered=partial(_keep_labels, maps))
        )
        if site.name == target:
            answers[method] = dict(zip((case.name for case in site.cases), maps, strict=True))
        progress(number)
    write_wide(out / "records.csv", ((e.about, e.rows) for e in evaluations))
    at_target = {e.about["method"]: e for e in evaluations if e.about["site"] == target}
    panels = show(model, sites[target], benchmark, at_target, answers)
    image = draw_panels(out / "demo.png", panels, benchmark.labels)
    rows = summarise(evaluations)
    found = conclude(rows, target, RECOMMENDED if RECOMMENDED in methods else methods[-1])
    page = write_demo_page(out / "demo.html", rows, found, image, dict(model.card.sources))
    return Demo(evaluations, target, found, data, page, image)


def _target_last(sites: Mapping[str, Site], target: str) -> list[Site]:
    return [*(site for site in sites.values() if site.name != target), sites[target]]


def show(
    model: Model,
    site: Site,
    benchmark: Benchmark,
    evaluations: Mapping[str, Evaluation],
    answers: Mapping[str, Mapping[str, np.ndarray]],
    rows: int = 5,
) -> list[Panel]:
    """Return images evenly spaced from the worst to the best of the unadapted model, with every method's answer."""
    dice = {method: _dice_by_case(evaluation) for method, evaluation in evaluations.items()}
    ranked = sorted(dice["source"], key=dice["source"].__getitem__)
    chosen = [ranked[i] for i in np.linspace(0, len(ranked) - 1, rows).round().astype(int)]
    images, truth = _truth(site, benchmark, model)
    return [
        Panel(case, images[case], truth[case], {m: (answers[m][case], dice[m][case]) for m in evaluations})
        for case in chosen
    ]


def _dice_by_case(evaluation: Evaluation) -> dict[str, float]:
    """Mean Dice of each image over its regions."""
    values: dict[str, list[float]] = {}
    for _, _, case, _, metric, value in evaluation.rows:
        if metric == "dice":
            values.setdefault(case, []).append(value)
    return {case: float(np.mean(dice)) for case, dice in values.items()}


def _keep_labels(maps: list[np.ndarray], logits: torch.Tensor) -> None:
    maps.extend(logits.argmax(1).to(torch.uint8).numpy())


def _truth(
    site: Site, benchmark: Benchmark, model: Model
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Images and true labels of every case of a site, at the network's size."""
    arrays = load_arrays(site.cases, benchmark_for_model(model.card, benchmark))
    assert arrays.masks is not None
    images = dict(zip(arrays.cases, arrays.images.movedim(1, -1).numpy(), strict=True))
    return images, dict(zip(arrays.cases, arrays.masks.numpy(), strict=True))
