"""The demo: a model trained at four drawn hospitals meets a fifth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ttdg.adaptation import adapt
from ttdg.checkpoints import Model, load
from ttdg.data import Benchmark, Site, find_sites, load_benchmark
from ttdg.data.synthetic.cases import SITES
from ttdg.data.synthetic.write import write_benchmark
from ttdg.evaluation.evaluate import Setting
from ttdg.evaluation.old_records import Records, joined, write
from ttdg.evaluation.site import benchmark_for_model, device_batches, evaluate_site
from ttdg.report.figures.panels import Panel, draw_panels, write_demo_page
from ttdg.report.terminal import summarise

BATCH = 8
SHOWN = ("source", "norm", "tent", "judge")  # a model fails, is mended, and is left alone where it was right
UNSEEN = 7  # the seed the demo draws with; the embedded model was trained on images of seed 0


@dataclass(frozen=True)
class Demo:
    records: Records
    target: str
    page: Path
    picture: Path


def run_demo(
    out: Path,
    methods: Sequence[str] = SHOWN,
    cases: int = 32,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int], None] = lambda done: None,
) -> Demo:
    """Draw the hospitals, score every method at each of them, and leave a table, a picture and a page in `out`."""
    model = load("demo")
    target = next(site for site in SITES if site not in model.card.sources)
    say(f"drawing five synthetic hospitals, {cases} images each")
    data = write_benchmark(out / "data", "fundus", cases, seed=UNSEEN)
    benchmark, sites = load_benchmark(None, data), find_sites(data)
    say(
        f"scoring {', '.join(methods)} at the four source hospitals and at {target}, which the model never saw"
    )
    jobs = [(site, method) for site in _ordered(sites, target) for method in methods]
    parts = []
    for number, (site, method) in enumerate(jobs, 1):
        parts.append(evaluate_site(model, site, benchmark, Setting(site.name, method, "online", BATCH)))
        progress(number)
    records = joined(parts)
    write(out, records)
    panels = show(model, sites[target], benchmark, records.where(site=target), methods)
    image = draw_panels(out / "demo.png", panels, benchmark.labels)
    page = write_demo_page(out / "demo.html", summarise(records), target, image, dict(model.card.sources))
    return Demo(records, target, page, image)


def _ordered(sites: Mapping[str, Site], target: str) -> list[Site]:
    return [*(site for site in sites.values() if site.name != target), sites[target]]


def show(
    model: Model, site: Site, benchmark: Benchmark, records: Records, methods: Sequence[str], rows: int = 5
) -> list[Panel]:
    """Pictures from the worst to the best of the unadapted model, evenly spaced: no picking of pretty ones."""
    scores = {m: _dice_by_case(records.where(method=m)) for m in methods}
    ranked = sorted(scores["source"], key=scores["source"].__getitem__)
    chosen = [ranked[i] for i in np.linspace(0, len(ranked) - 1, rows).round().astype(int)]
    answers = {method: _answers(model, site, benchmark, method) for method in methods}
    images, truth = _truth(site, benchmark, model)
    return [
        Panel(case, images[case], truth[case], {m: (answers[m][case], scores[m][case]) for m in methods})
        for case in chosen
    ]


def _dice_by_case(records: Records) -> dict[str, float]:
    return {case: records.where(case=case).mean("dice") for case in records.values("case")}


def _answers(model: Model, site: Site, benchmark: Benchmark, method: str) -> dict[str, np.ndarray]:
    adapter = adapt(model, method)
    answers: dict[str, np.ndarray] = {}
    for batch in device_batches(
        torch.device("cpu"), site.cases, benchmark_for_model(model.card, benchmark), BATCH
    ):
        labels = adapter(batch.images).argmax(1).to(torch.uint8).numpy()
        answers |= dict(zip(batch.cases, labels, strict=True))
    return answers


def _truth(
    site: Site, benchmark: Benchmark, model: Model
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    from ttdg.data import load_arrays

    arrays = load_arrays(site.cases, benchmark_for_model(model.card, benchmark))
    assert arrays.masks is not None
    images = dict(zip(arrays.cases, arrays.images.movedim(1, -1).numpy(), strict=True))
    return images, dict(zip(arrays.cases, arrays.masks.numpy(), strict=True))
