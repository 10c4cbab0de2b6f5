"""The figures of the paper, of one model at one site: segmentations, Grad-CAM, matched nodes and the effect of W."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ttdg.adaptation import build_adapter, required_parts, seed_all
from ttdg.adaptation.whole_site import learn_site
from ttdg.checkpoints import Model, load
from ttdg.data import Benchmark, Site, find_sites, load_benchmark, load_sources
from ttdg.data.synthetic import write_benchmark
from ttdg.errors import UserError
from ttdg.evaluation.site import benchmark_for_model, device_batches
from ttdg.files import atomic_file
from ttdg.prior import prior_from_part
from ttdg.report.demo import UNSEEN
from ttdg.report.figures.explanations import draw_cams, draw_pairs, grad_cam, matched_pairs
from ttdg.report.figures.model_figures import LABEL, rescale_for_display
from ttdg.report.figures.panels import draw_panels
from ttdg.report.figures.site_answers import comparison_panels, evaluate_with_answers
from ttdg.training import Recipe, make_fabric, train

BATCH = 4  # as in the paper
DRAWN = "synthetic-"  # the names of drawn benchmarks begin so
WITH_W = {"with W": "printed", "w/o W": "none"}  # column → class matrix of the training
PAPER = "universe-literal"  # the method of the paper as printed


def drawn_hospitals(out: Path, benchmark: Benchmark, cases: int) -> tuple[Benchmark, dict[str, Site]]:
    """Draw hospitals of the kind that a model was trained at, into a folder below `out`; one that is there is kept."""
    if not benchmark.name.startswith(DRAWN):
        raise UserError(f"the model knows {benchmark.name}, which is not drawn; name a benchmark folder")
    data = out / f"{benchmark.name}-{benchmark.size}px-{cases}"
    if not data.exists():
        write_benchmark(data, benchmark.name.removeprefix(DRAWN), cases, benchmark.size, UNSEEN)
    return load_benchmark(None, data), find_sites(data)


def draw_segmentations(
    path: Path, model: Model, site: Site, benchmark: Benchmark, methods: Sequence[str], rows: int
) -> Path:
    """Draw images with the true outlines and those of each method, with the Dice below."""
    found = {method: evaluate_with_answers(model, site, benchmark, method, BATCH) for method in methods}
    return draw_panels(path, comparison_panels(model, site, benchmark, found, rows), benchmark.labels)


def draw_site_cams(
    path: Path, model: Model, site: Site, benchmark: Benchmark, methods: Sequence[str], rows: int
) -> Path:
    """Draw the Grad-CAM of the first structure, of each method's network after it has adapted to the site."""
    device = next(model.network.parameters()).device
    readable = benchmark_for_model(model.card, benchmark)
    images = next(device_batches(device, site.cases[:rows], readable, rows)).images
    maps = {}
    for method in methods:
        seed_all(0)
        adapter = build_adapter(model, method, {}, "plain")
        learn_site(adapter, (batch.images for batch in device_batches(device, site.cases, readable, BATCH)))
        maps[method] = grad_cam(adapter.network, images, LABEL)
    return _write(path, draw_cams(rescale_for_display(images), maps))


def draw_site_pairs(path: Path, model: Model, sites: Sequence[Site], benchmark: Benchmark) -> Path:
    """Draw the first images of two sites with their matched nodes, by features alone and through the universe."""
    if len(sites) != 2:
        raise UserError(f"nodes are matched between two sites, not {len(sites)}; name two")
    (part,) = required_parts("matched nodes", ("prior",), model.parts)
    device = next(model.network.parameters()).device
    prior = prior_from_part(part).to(device)
    readable = benchmark_for_model(model.card, benchmark)
    cases = [site.cases[0] for site in sites]
    images = next(device_batches(device, cases, readable, 2)).images
    found = {
        "without the prior": matched_pairs(model.network, prior, images, with_prior=False),
        "with the prior": matched_pairs(model.network, prior, images),
    }
    return _write(path, draw_pairs(rescale_for_display(images), found))


def draw_class_matrix(
    path: Path, models: Mapping[str, Model], site: Site, benchmark: Benchmark, rows: int
) -> tuple[Path, dict[str, float]]:
    """Draw the answers of the paper's method at a site for models that differ in W; return also their mean Dice."""
    found = {
        name: evaluate_with_answers(model, site, benchmark, PAPER, BATCH) for name, model in models.items()
    }
    scores = {name: evaluation.about["dice"][site.name] for name, (evaluation, _) in found.items()}
    panels = comparison_panels(next(iter(models.values())), site, benchmark, found, rows)
    titled = [
        replace(panel, answers={f"{name}: {100 * scores[name]:.1f}": panel.answers[name] for name in found})
        for panel in panels
    ]
    return draw_panels(path, titled, benchmark.labels), scores


def train_with_and_without_w(
    folder: Path,
    sites: Mapping[str, Site],
    benchmark: Benchmark,
    recipe: Recipe,
    accelerator: str,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Model]:
    """Train two models by Algorithm 1 that differ in W only; models that are there are kept."""
    sources = load_sources(sites, benchmark)
    models = {}
    for name, matrix in WITH_W.items():
        mine, out = replace(recipe, class_matrix=matrix), folder / f"class-matrix-{matrix}"
        if not out.exists():
            say(f"training {out.name}, {mine.steps} steps")
            train(
                sources.train, sources.held_out, benchmark, mine, out,
                fabric=make_fabric(mine, accelerator, 1), provenance=sources.provenance,
            )  # fmt: skip
        models[name] = load(out)
        if models[name].card.recipe != mine.to_dict() or models[name].card.sources != sources.provenance:
            raise UserError(f"{out} was trained otherwise; remove it, or name another folder")
    return models


def target_of(model: Model, sites: Mapping[str, Site], name: str | None) -> Site:
    """Return the named site, or the first one that the model was not trained at."""
    if name is None:
        name = next((site for site in sites if site not in model.card.sources), next(iter(sites)))
    return sites[name]


def _write(path: Path, data: bytes) -> Path:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
    return path
