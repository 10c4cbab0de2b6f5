"""From the yaml file to a run that can start: data found or drawn, jobs planned, `run.json` written.

It needs torch, to know the methods and their options; the process that schedules does not. `prepare` is
therefore called in a process of its own.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ttdg.bench.config import Config, read_config
from ttdg.bench.folder import RunFolder, benchmark_folder, cores
from ttdg.bench.plan import plan_jobs, survey, with_config_size
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.run_file import RunPlan, read_run, write_run
from ttdg.checkpoints import versions
from ttdg.data import find_sites, load_benchmark
from ttdg.errors import UserError, suggestion


def prepare_run(request: RunRequest) -> PreparedRun:
    config = read_config(request.config)
    if request.encoder_weights is not None:
        weights = str(request.encoder_weights.resolve())
        config = config.model_copy(update={"recipe": config.recipe | {"encoder_weights": weights}})
    chosen = _only(config, request.only)
    out = request.out.resolve()
    config = _only(config, _with_earlier(config, request.only, out))
    data = _data(config, request, out)
    benchmark = with_config_size(load_benchmark(config.benchmark, data), config)
    world = survey(benchmark, find_sites(data, config.sites or None))
    planned = plan_jobs(config, world)
    asked = planned if chosen == config else plan_jobs(chosen, world)
    device, gpus = _device(request.device)
    workers = request.workers or (2 * gpus if gpus else cores())
    models = (request.models or out / "models").resolve()
    run = RunPlan(
        config.name, config.baseline, config.harm, _published(config), planned.jobs, planned.entries,
        str(data), str(models), versions(),
    )  # fmt: skip
    write_run(out, run)
    threads = request.threads or max(1, cores() // workers)
    place = RunFolder(out, data, models, device, threads, config.recipe.get("encoder_weights"))
    return PreparedRun(run, asked.jobs, place, workers, gpus)


def _with_earlier(config: Config, names: Sequence[str], out: Path) -> tuple[str, ...]:
    """The experiments named now and those the folder has from before: a run may be made piece by piece."""
    if not names or not (out / "run.json").exists():
        return tuple(names)
    earlier = {entry.experiment for entry in read_run(out).entries}
    return tuple(e.name for e in config.experiments if e.name in earlier.union(names))


def _only(config: Config, names: Sequence[str]) -> Config:
    known = {experiment.name: experiment for experiment in config.experiments}
    for name in names:
        if name not in known:
            raise UserError(f"the yaml has no experiment {name!r}{suggestion(name, known)}")
    return config.model_copy(update={"experiments": [known[name] for name in names or known]})


def _data(config: Config, request: RunRequest, out: Path) -> Path:
    """--data, the yaml's own folder, drawn hospitals, or $TTDG_DATA; a folder of benchmarks will do."""
    if config.synthetic is not None and request.data is None:
        return _drawn(config, out)
    named = request.data or (request.config.parent / config.data if config.data else None)
    if named is None and "TTDG_DATA" in os.environ:
        named = Path(os.environ["TTDG_DATA"])
    if named is None:
        raise UserError("name the benchmark folder with --data, with `data:` in the yaml, or set TTDG_DATA")
    root = benchmark_folder(named, config.benchmark or config.name)
    if not root.is_dir():
        raise UserError(f"no folder at {root}; name the benchmark folder with --data")
    return root.resolve()


def _drawn(config: Config, out: Path) -> Path:
    """Drawn once; a folder left by other settings is drawn anew, since its name says the settings."""
    wish = config.synthetic
    assert wish is not None
    folder = out / "data" / f"{wish.variant}-{wish.cases}-{wish.size}-{wish.seed}"
    if not (folder / "benchmark.yaml").is_file():
        from ttdg.data.synthetic.write import write_benchmark  # scipy: only those who draw pay for it

        write_benchmark(folder, wish.variant, wish.cases, size=wish.size, seed=wish.seed)
    return folder


def _device(wanted: str) -> tuple[str, int]:
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return ("cuda", gpus) if gpus else ("cpu", 0)
    if wanted not in ("cpu", "cuda"):
        raise UserError(f"--device is auto, cpu or cuda, not {wanted!r}")
    if wanted == "cuda" and not gpus:
        raise UserError("no GPU is usable here: torch sees none; use --device cpu")
    return wanted, gpus if wanted == "cuda" else 0


def _published(config: Config) -> dict[str, object]:
    """The config as it may be shown: the weights' file by its name."""
    fields = config.model_dump()
    if weights := fields["recipe"].get("encoder_weights"):
        fields["recipe"]["encoder_weights"] = Path(weights).name
    return fields
