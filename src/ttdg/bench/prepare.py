"""Preparation of a run: read the yaml file, find or draw the data, plan the jobs, write `run.json`.

Planning imports torch to read the methods and their options. The scheduling process does not import torch, so it
calls `prepare_run` in a separate process.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ttdg.bench.config import Config, Synthetic, read_config
from ttdg.bench.folder import RunFolder
from ttdg.bench.other_runs.reuse import reuse_records
from ttdg.bench.other_runs.reuse_searches import reuse_searches
from ttdg.bench.plan import JobPlan, plan_jobs
from ttdg.bench.request import PreparedRun, RunRequest
from ttdg.bench.run_file import DamagedRun, RunPlan, is_baseline, read_run, write_run
from ttdg.bench.selection import select_jobs
from ttdg.checkpoints import versions
from ttdg.data import find_benchmark_folder, find_sites, load_benchmark, summarise_data
from ttdg.data.threads import available_cores
from ttdg.errors import UserError, suggestion
from ttdg.networks.devices import resolve_device


def prepare_run(request: RunRequest) -> PreparedRun:
    """Plan the jobs of a request and write `run.json` into its output folder."""
    config = read_config(request.config)
    if request.encoder_weights is not None:
        weights = str(request.encoder_weights.resolve())
        config = config.model_copy(update={"recipe": config.recipe | {"encoder_weights": weights}})
    requested = _select(config, request.only)
    out = request.out.resolve()
    config = _select(config, _with_earlier(config, request.only, out))
    root = _data_folder(config, request, out)
    benchmark = load_benchmark(_beside(request.config, config.benchmark), root)
    if config.size is not None:
        benchmark = replace(benchmark, size=config.size)
    data = summarise_data(benchmark, find_sites(root, config.sites or None))
    device = resolve_device(request.device)
    run_versions = versions()
    planned = plan_jobs(config, data)
    check_baseline(config, planned)
    wanted = planned if requested == config else plan_jobs(requested, data)
    jobs = select_jobs(wanted.jobs, wanted.entries, request.piece, config.baseline)
    gpus = _count_gpus(device)
    workers = request.workers or (2 * gpus if gpus else available_cores())
    models = (request.models or out / "models").resolve()
    run = RunPlan(
        config.name, config.baseline, config.harm, _publishable(config), planned.jobs, planned.entries,
        str(root), str(models), run_versions, data.tables(),
    )  # fmt: skip
    for folder_of_run in (out, *request.records):
        _check_tables(folder_of_run, run)
    write_run(out, run)
    threads = request.threads or max(1, available_cores() // workers)
    folder = RunFolder(out, root, models, device, threads, config.recipe.get("encoder_weights"))
    for packed in request.records:
        reuse_records(packed, jobs, folder)
    remarks = reuse_searches(request.records, jobs, folder)
    return PreparedRun(run, jobs, folder, workers, gpus, remarks)


def _check_tables(folder: Path, run: RunPlan) -> None:
    """Refuse to continue a run, or to take over its records, if the table of a site has changed since.

    The keys of jobs hold the files of a site, and not its patients, splits and voxel sizes.
    """
    if not (folder / "run.json").is_file():
        return
    try:
        earlier = read_run(folder).tables
    except DamagedRun:
        return
    changed = [name for name, table in run.tables.items() if earlier.get(name, table) != table]
    if changed:
        sites = ", ".join(name.partition(",")[0] for name in changed)
        raise UserError(
            f"the patients, splits or voxel sizes of {sites} are not those of the run {folder}; restore the table "
            "(cases.csv), or choose another output folder"
        )


def check_baseline(config: Config, planned: JobPlan) -> None:
    """Raise a UserError if no row of an experiment is the baseline, because its tables would have no gains."""
    for experiment in config.experiments:
        labels = dict.fromkeys(
            entry.label for entry in planned.entries if entry.experiment == experiment.name
        )
        if not any(is_baseline(label, config.baseline) for label in labels):
            raise UserError(
                f"{experiment.name!r} has no row of the baseline {config.baseline!r}"
                f"{suggestion(config.baseline, labels)}; add it to `methods`, or name another row as `baseline`"
            )


def _with_earlier(config: Config, names: Sequence[str], out: Path) -> tuple[str, ...]:
    """Return the named experiments and those an earlier call planned in this folder; empty means all."""
    if not names or not (out / "run.json").exists():
        return tuple(names)
    try:
        earlier = {entry.experiment for entry in read_run(out).entries}
    except DamagedRun:
        return tuple(names)
    return tuple(e.name for e in config.experiments if e.name in earlier.union(names))


def _select(config: Config, names: Sequence[str]) -> Config:
    """Return the config with the named experiments only; no names means all."""
    known = {experiment.name: experiment for experiment in config.experiments}
    for name in names:
        if name not in known:
            raise UserError(f"the yaml file has no experiment {name!r}{suggestion(name, known)}")
    return config.model_copy(update={"experiments": [known[name] for name in names or known]})


def _data_folder(config: Config, request: RunRequest, out: Path) -> Path:
    """Return the data folder: of the request, synthetic, of the yaml file, or the default data folder."""
    if config.synthetic is not None and request.data is None:
        return _draw_data(config.synthetic, out)
    named = request.data or (request.config.parent / config.data if config.data else None)
    return find_benchmark_folder(named, config.benchmark or config.name).resolve()


def _beside(config: Path, benchmark: str | None) -> str | None:
    """The benchmark of a yaml file: a name, or the path of a file, relative to the yaml file or to this folder."""
    beside = config.parent / (benchmark or "")
    return str(beside) if benchmark and beside.is_file() else benchmark


def _draw_data(synthetic: Synthetic, out: Path) -> Path:
    """Draw the synthetic hospitals once; the folder name contains the settings, so other settings draw anew."""
    folder = out / "data" / f"{synthetic.variant}-{synthetic.cases}-{synthetic.size}-{synthetic.seed}"
    if not (folder / "benchmark.yaml").is_file():
        from ttdg.data.synthetic.write import write_benchmark  # imports scipy

        write_benchmark(folder, synthetic.variant, synthetic.cases, size=synthetic.size, seed=synthetic.seed)
    return folder


def _count_gpus(device: str) -> int:
    """Return the number of GPUs that the jobs may use."""
    import torch

    if device not in ("cpu", "cuda"):
        raise UserError(
            f"a run assigns its GPUs to its workers; use 'cuda' instead of {device!r}, and CUDA_VISIBLE_DEVICES to "
            "select GPUs"
        )
    return torch.cuda.device_count() if device == "cuda" else 0


def _publishable(config: Config) -> dict[str, object]:
    """Return the fields of the config with the encoder weights as a file name, without the path."""
    fields = config.model_dump()
    if weights := fields["recipe"].get("encoder_weights"):
        fields["recipe"]["encoder_weights"] = Path(weights).name
    return fields
