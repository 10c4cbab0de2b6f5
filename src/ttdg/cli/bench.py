"""ttdg bench: a benchmark run from one yaml file."""

from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import DataOption, DeviceOption

PARTLY = 3  # exit status when some jobs failed


def bench_command(
    config: Annotated[Path, typer.Argument(help="What to run, e.g. experiments/smoke.yaml.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run: records, models, logs.")],
    data: DataOption = None,
    encoder_weights: Annotated[
        Path | None, typer.Option(help="ImageNet weights with torchvision's names.", show_default=False)
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Folder of source models shared by runs; default OUT/models.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Experiment of the yaml; several times. Default: all.", show_default=False),
    ] = None,
    executor: Annotated[str, typer.Option(help="local, slurm or ray.")] = "local",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at a time; default: one a core, two a GPU.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads a job; default: the cores, shared.", show_default=False),
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster.", show_default=False)] = None,
    partition: Annotated[str | None, typer.Option(help="Of SLURM.", show_default=False)] = None,
    minutes: Annotated[int, typer.Option(help="A SLURM job may take.")] = 240,
    gpus: Annotated[int, typer.Option(help="1: every job on a cluster gets a GPU.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Run every job of a benchmark: source models once, then each method on each target. Killed, it goes on.

    A job that fails is reported with its log and stops no other (exit status 3).

    Example: [bold]ttdg bench experiments/smoke.yaml --out runs/smoke[/bold]
    """
    from ttdg.bench.console import live
    from ttdg.bench.executors import Options
    from ttdg.bench.jobs import job_title
    from ttdg.bench.request import RunRequest
    from ttdg.bench.run import run_benchmark as run
    from ttdg.bench.run_file import read_run

    request = RunRequest(
        config, out, data, models, encoder_weights, device, workers, threads, tuple(only or ())
    )
    with live() as watch:
        ended = run(request, executor, Options(workers, address, partition, minutes, gpus), watch)
    typer.echo(f"{out}: {ended.done} jobs done, {ended.found} of them before; tables: `ttdg report {out}`")
    for key, error in ended.failed.items():
        log = out / "logs" / f"{key}.log"
        typer.echo(f"failed: {job_title(read_run(out).jobs[key])}: {error} (log: {log})", err=True)
    if ended.blocked:
        typer.echo(f"{len(ended.blocked)} jobs need a failed one and did not run", err=True)
    raise typer.Exit(PARTLY if ended.failed else 0)
