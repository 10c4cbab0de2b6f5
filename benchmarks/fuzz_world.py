"""Valid files of every kind for `fuzz_files.py`, and how the package reads each.

`make_world` writes drawn discs at three sites, a model, predictions of a folder, a benchmark run with its records, and
the files of a half-finished training into `world/`. `valid_files` returns what is damaged, below `input/`, where each
input lies among copies of the valid files beside it.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from fuzz import File

SEEN = "images"  # key of a saved state
WHERE = {  # kind → folder of the world that is copied, and the files in it that are damaged
    "card": ("demo", ("model.json",)),
    "part": ("demo", ("judge.safetensors", "prior.safetensors", "fingerprint.safetensors")),
    "predict-state": ("states", ("self-training.safetensors",)),
    "train-state": ("training.partial", ("state.pt",)),
    "fit-round": ("rounds", ("*/round-1.pt",)),
    "journal": ("out", ("journal.jsonl",)),
    "audit": ("out", ("audit.jsonl", "manifest.json")),
    "record": ("run", ("records/*.csv.gz",)),
    "packed": ("packed", ("about.json", "records.csv.gz")),
    "run": ("packed", ("run.json",)),
    "pack": ("packs", ("east.safetensors",)),
    "tuned": ("tuned", ("tuned.yaml", "search.yaml")),
    "benchmark": ("yaml", ("benchmark.yaml",)),
    "experiment": ("yaml", ("experiment.yaml",)),
    "policy": ("yaml", ("policy.yaml",)),
    "cases": ("few", ("east/cases.csv",)),
}
KINDS = tuple(WHERE)
RECIPE = {"encoder": "light", "steps": 1, "batch": 2, "universe": 0.0}
EXPERIMENT = {
    "name": "fuzz", "recipe": RECIPE, "benchmark": "synthetic-fundus", "seeds": [0, 1],
    "tune": {"images": 4, "hospitals": 1},
    "experiments": [{
        "name": "main", "protocol": "leave-one-out", "streams": ["online"], "batches": [2, 4],
        "methods": ["source", "norm", {"method": "tent", "options": {"lr": 0.01}, "grid": {"steps": [1, 2]}}],
    }],
}  # fmt: skip
SEARCH = {
    "model": "0" * 64, "sources": ["east"], "search": {"batch": 4, "stream": "online", "seed": 0},
    "methods": {"tent": {"chosen": {"lr": 0.01}, "dice": 50.0, "trials": [{"options": {"lr": 0.01}, "dice": 50.0}]}},
}  # fmt: skip
QUICK = {"steps": 1, "folder_steps": 1, "draw": 2}


SITES = ("east", "south", "west")
SIDE, FOLDER = 32, 1000  # pixels of a side, images of a folder, in `draw_images`


def draw_discs(root: Path, seed: int, count: int = 4, sites: tuple[str, ...] = SITES) -> Path:
    """Write sites of bright discs on noise, with their benchmark file."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True)
    (root / "benchmark.yaml").write_text(
        "name: discs\nlabels: [background, disc]\nmask: {threshold: 127, above: disc, below: background}\n"
        "regions: {disc: [disc]}\nnormalisation: minmax\nsize: 32\n"
    )
    y, x = np.mgrid[:40, :48]
    for site in sites:
        for part in ("images", "masks"):
            (root / site / part).mkdir(parents=True)
        for case in range(count):
            cy, cx = rng.uniform(0.35, 0.65, 2) * (40, 48)
            inside = (y - cy) ** 2 + (x - cx) ** 2 < (40 * rng.uniform(0.2, 0.3)) ** 2
            pixels = rng.normal(60, 15, (40, 48, 3)) + inside[..., None] * (120, 90, 40)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / site / f"images/{case:02}.png")
            Image.fromarray((inside * 255).astype(np.uint8)).save(root / site / f"masks/{case:02}.png")
        rows = "".join(
            f"{case:02},p{case},{'test' if case % 2 else 'train'},0.5,0.5\n" for case in range(count)
        )
        (root / site / "cases.csv").write_text("case,patient,split,spacing_y,spacing_x\n" + rows)
    return root


def draw_images(root: Path, count: int) -> Path:
    """Write drawn images; each differs from all others."""
    y, x = np.mgrid[:SIDE, :SIDE]
    for number in range(count):
        rng = np.random.default_rng(number)
        cy, cx, radius = rng.uniform(0.35, 0.65), rng.uniform(0.35, 0.65), rng.uniform(0.2, 0.3)
        inside = (y - cy * SIDE) ** 2 + (x - cx * SIDE) ** 2 < (radius * SIDE) ** 2
        pixels = rng.normal(60, 15, (SIDE, SIDE, 3)) + inside[..., None] * (120, 90, 40)
        path = root / f"{number // FOLDER:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, compress_level=1)
    return root


def load_model(folder: Path):
    from ttdg.checkpoints import load

    return load(folder)


def save_model(discs: Path, folder: Path, seed: int, sources: Mapping[str, Any] | None = None):
    """Write an untrained small network with its card, and load it; `sources` is what the card states of them."""
    from ttdg.checkpoints import ModelCard, save
    from ttdg.data import load_benchmark
    from ttdg.networks import NetworkSpec, Segmenter

    torch.manual_seed(seed)
    network = Segmenter(NetworkSpec(labels=2, encoder="light")).eval()
    stated = sources or {"east": {"cases": 4}}
    save(folder, network, ModelCard(network.spec, load_benchmark(None, discs), stated))
    return load_model(folder)


def make_world(folder: Path, seed: int) -> None:
    import yaml

    from ttdg.adaptation import build_adapter
    from ttdg.bench.config import parse_config
    from ttdg.bench.folder import RunFolder
    from ttdg.bench.jobs import to_dict
    from ttdg.bench.plan import plan_jobs
    from ttdg.bench.results import pack_run, read_table
    from ttdg.bench.run_file import RunPlan, write_run
    from ttdg.bench.worker import run_job
    from ttdg.data import find_sites, load_benchmark, pack_site, summarise_data
    from ttdg.newsite import predict
    from ttdg.newsite.run_state import RunState
    from ttdg.safety.policy import GatePolicy

    torch.set_num_threads(1)
    world = folder / "world"
    discs = draw_discs(world / "discs", seed)
    draw_discs(world / "few", seed, 2, ("east",))
    model = save_model(discs, world / "model", seed)
    benchmark, sites = load_benchmark(None, discs), find_sites(discs)
    shutil.copytree(Path(__import__("ttdg").__file__).parent / "assets" / "demo", world / "demo")
    predict(model, world / "few/east/images", world / "out", method="tent", batch=2, overlays=False)
    adapter = build_adapter(tiny_network(), "self-training", QUICK)
    adapter(torch.rand(2, 3, 32, 32))
    RunState(world, "self-training", adapter).save(SEEN, 1)
    (world / "state").rename(world / "states")
    state, network, optimiser = training_state(world / "training")
    state.save(network, optimiser, 3)
    finished_round(world / "rounds")
    fields = {"name": "t", "recipe": RECIPE, "experiments": [{
        "name": "main", "protocol": "leave-one-out", "methods": ["source", "norm"]}]}  # fmt: skip
    config = parse_config(fields, "t.yaml")
    plan = plan_jobs(config, summarise_data(benchmark, sites))
    run = RunPlan(config.name, config.baseline, config.harm, config.model_dump(), plan.jobs, plan.entries)
    write_run(world / "run", run)
    place = RunFolder(world / "run", discs, world / "run" / "models")
    for key, job in plan.jobs.items():
        assert not run_job(key, to_dict(job), place).error
    shutil.rmtree(world / "run" / "models")
    pack_run(read_table(world / "run"), world / "packed")
    pack_site(sites["east"], benchmark, world / "packs")
    for name, value in (
        ("tuned/search.yaml", SEARCH),
        (
            "tuned/tuned.yaml",
            {"a" * 16: {**SEARCH, **SEARCH["methods"]["tent"], "method": "tent"} | {"methods": None}},
        ),
        ("yaml/experiment.yaml", EXPERIMENT),
        ("yaml/policy.yaml", GatePolicy().to_dict()),
        ("yaml/benchmark.yaml", load_benchmark("synthetic-fundus").to_dict()),
    ):
        (world / name).parent.mkdir(exist_ok=True)
        if isinstance(value, dict) and "a" * 16 in value:
            del value["a" * 16]["methods"]
        (world / name).write_text(yaml.safe_dump(value))


def tiny_network() -> nn.Module:
    """Return a network of two layers, so that its states are small."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


def training_state(out: Path):
    """Return the state of a half-finished training, its network, and an optimiser that has made a step."""
    from ttdg.training.resume import State

    network = tiny_network()
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    return State(out, {"recipe": RECIPE, "sources": {}}, 60.0), network, optimiser


def finished_round(folder: Path) -> dict[str, torch.Tensor]:
    """Return a round of a fit, computed unless its file is intact."""
    from ttdg.adaptation.judge.finished_rounds import FinishedRounds

    kept = FinishedRounds(folder, {"seed": 0}, torch.device("cpu"))
    return kept("round-1", lambda: {"x": torch.arange(8.0)})


def valid_files(folder: Path) -> dict[str, list[File]]:
    found: dict[str, list[File]] = {}
    for kind, (place, names) in WHERE.items():
        root = folder / "world" / place
        paths = [path for name in names for path in sorted(root.glob(name))[:3]]
        found[kind] = [File(f"input/{path.relative_to(root)}", path.read_bytes()) for path in paths]
    return found


def restore(kind: str, path: Path, folder: Path) -> Path:
    """Put the valid files around the input, as copies if the reader writes; return their folder."""
    root, content, where = folder / "input", path.read_bytes(), folder / "world" / WHERE[kind][0]
    shutil.rmtree(root)
    if WHERE[kind][0] in ("out", "rounds", "tuned"):
        shutil.copytree(where, root)
    else:
        shutil.copytree(where, root, copy_function=link)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return root


def link(source: str, target: str) -> None:
    Path(target).symlink_to(Path(source).resolve())


MEMORY = {}  # what is read once


def read_file(kind: str, path: Path, folder: Path) -> None:
    """Read a file of this kind, and do with it what the commands do next."""
    root = restore(kind, path, folder)
    READERS[kind](path, root, folder / "world")


def command(*words: object) -> None:
    """Run a command of `ttdg` in this process; exceptions other than an exit are raised."""
    from typer.testing import CliRunner

    from ttdg.cli import app

    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


def read_card(path: Path, root: Path, world: Path) -> None:
    from ttdg.adaptation import build_adapter
    from ttdg.checkpoints import load

    build_adapter(load(root), "source", {})(torch.rand(1, 3, 32, 32))
    command("info", root)


def read_part(path: Path, root: Path, world: Path) -> None:
    from ttdg.adaptation import build_adapter
    from ttdg.checkpoints import load
    from ttdg.safety import Fingerprint, SourceShadow, measure_drift

    model, images = load(root), torch.rand(2, 3, 32, 32)
    if path.stem == "fingerprint":
        fingerprint = Fingerprint.from_part(model.parts["fingerprint"])
        shadow = SourceShadow(model.network, fingerprint.layers)
        measure_drift(fingerprint, [fingerprint.embed(shadow(images)[1])])
    else:
        build_adapter(model, "judge" if path.stem == "judge" else "universe", {})(images)


def read_predict_state(path: Path, root: Path, world: Path) -> None:
    from ttdg.adaptation import build_adapter
    from ttdg.newsite.run_state import RunState

    adapter, images = build_adapter(tiny_network(), path.stem, QUICK), torch.rand(1, 3, 32, 32)
    state = RunState(root, path.stem, adapter)
    state.path = path
    state._batches()
    if state.load(SEEN):
        adapter.predict_frozen(images)
        adapter(images)


def read_train_state(path: Path, root: Path, world: Path) -> None:
    state, network, optimiser = training_state(world / "training")
    state.folder, state.file = root, path
    state.resume(network, optimiser)


def read_fit_round(path: Path, root: Path, world: Path) -> None:
    assert finished_round(root)["x"].tolist() == [*range(8)]


def read_journal(path: Path, root: Path, world: Path) -> None:
    from ttdg.newsite import predict

    if "model" not in MEMORY:
        MEMORY["model"] = load_model(world / "model")
    predict(
        MEMORY["model"], world / "few/east/images", root, method="tent", batch=2, overlays=False, workers=1
    )


def read_audit(path: Path, root: Path, world: Path) -> None:
    from ttdg.newsite.audit import AuditLog, verify_audit
    from ttdg.newsite.revert import revert

    verify_audit(root).counts()
    revert(root, 2)
    AuditLog(root).open()


def read_records(path: Path, root: Path, world: Path) -> None:
    from ttdg.bench.record_check import record_fault
    from ttdg.bench.results import read_table
    from ttdg.evaluation.records import read_rows
    from ttdg.report.comparison import report_tables
    from ttdg.report.leaderboard import build_leaderboards

    if path.name.endswith(".csv.gz") and path.parent.name == "records":
        record_fault(path)
        read_rows(path)
    report_tables(read_table(root))
    build_leaderboards([root])


def read_pack(path: Path, root: Path, world: Path) -> None:
    from ttdg.data import find_sites, load_benchmark
    from ttdg.data.packing import load_site

    discs = world / "discs"
    load_site(find_sites(discs, ["east"])["east"], load_benchmark(None, discs), root)


def read_tuned(path: Path, root: Path, world: Path) -> None:
    from ttdg.errors import UserError
    from ttdg.evaluation.tuned_options import choices_for, read_search, recorded_spread, searches

    for reading in (
        lambda: choices_for(path, SEARCH["model"], ["west"], ["tent"], 4, "online"),
        lambda: read_search(path, {name: value for name, value in SEARCH.items() if name != "methods"}),
        lambda: [recorded_spread(search) for search in searches(root).values()],
    ):
        try:
            reading()
        except UserError:
            continue


def read_benchmark(path: Path, root: Path, world: Path) -> None:
    from ttdg.data import Benchmark, load_benchmark

    benchmark = load_benchmark(path)
    Benchmark.from_dict(json.loads(json.dumps(benchmark.to_dict())))
    benchmark.decode(np.zeros((2, 2), np.uint8))


def read_experiment(path: Path, root: Path, world: Path) -> None:
    from ttdg.bench.config import read_config
    from ttdg.bench.plan import plan_jobs
    from ttdg.data import find_sites, load_benchmark, summarise_data

    config = read_config(path)
    if "summary" not in MEMORY:
        MEMORY["summary"] = summarise_data(load_benchmark(None, world / "discs"), find_sites(world / "discs"))
    plan_jobs(config, MEMORY["summary"])


def read_policy_file(path: Path, root: Path, world: Path) -> None:
    from ttdg.safety.policy import read_policy

    read_policy(path).to_dict()


def read_sites(path: Path, root: Path, world: Path) -> None:
    from ttdg.data import find_sites

    find_sites(root)


READERS = {
    "card": read_card, "part": read_part, "predict-state": read_predict_state, "train-state": read_train_state,
    "fit-round": read_fit_round,
    "journal": read_journal, "audit": read_audit, "record": read_records, "packed": read_records, "run": read_records,
    "pack": read_pack, "tuned": read_tuned, "benchmark": read_benchmark, "experiment": read_experiment,
    "policy": read_policy_file, "cases": read_sites,
}  # fmt: skip
