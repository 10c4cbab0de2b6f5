"""The command `ttdg bench`: run a benchmark described by a yaml file."""

import math
from pathlib import Path
from typing import Annotated

import typer

from ttdg.cli.options import DataOption, DeviceOption, output_folder

PARTLY = 3  # exit status when some jobs failed or are left


def bench_command(
    config: Annotated[Path, typer.Argument(help="The yaml file, e.g. experiments/smoke.yaml.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for records, models and logs.", callback=output_folder),
    ],
    data: DataOption = None,
    encoder_weights: Annotated[
        Path | None, typer.Option(help="ImageNet weights with torchvision's names.", show_default=False)
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Folder of source models, shared by runs; default OUT/models.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this experiment; may be repeated. Default: all.", show_default=False),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Run only this training seed; may be repeated.", show_default=False),
    ] = None,
    row: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this table row, or all rows of this method if no row has that name, and the baseline; "
            "may be repeated.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Score only at this site; may be repeated.", show_default=False),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="Packed records, e.g. docs/records/shapes, or a folder of a run: their scorings and searches are "
            "taken over; may be repeated.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[str, typer.Option(help="local, slurm or ray.")] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Jobs at the same time; default: one per core, two per GPU.", show_default=False
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads per job; default: cores ÷ workers.", show_default=False),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster.", show_default=False)
    ] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM partition.", show_default=False)] = None,
    minutes: Annotated[int, typer.Option(min=1, help="Time limit of a SLURM job, in minutes.")] = 240,
    gpus: Annotated[int, typer.Option(min=0, help="With 1, every job on a cluster gets a GPU.")] = 0,
    device: DeviceOption = "auto",
    until: Annotated[
        str,
        typer.Option(help="Last kind of job to run: train, fit, tune or score."),
    ] = "score",
    stop_after: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Minutes after which the command stops; running jobs are terminated, and a second call continues.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run all jobs of a benchmark: train the source models, then score each method on each target.

    If the command is interrupted, run it again: it continues with the jobs that are not finished.
    A failed job does not stop the others; it is reported with its log, and the exit status is 3.
    A large file is run in pieces with --only, --seed, --row and --target; the reports show what there is.

    Example: [bold]ttdg bench experiments/smoke.yaml --out runs/smoke[/bold]
    """
    from ttdg.bench import Piece, RunRequest, read_run, run_benchmark
    from ttdg.bench.console import progress_display
    from ttdg.bench.executors import ExecutorOptions
    from ttdg.bench.jobs import job_title

    request = RunRequest(
        config, out, data, models, encoder_weights, device, workers, threads, only=tuple(only or ()),
        piece=Piece(tuple(seed or ()), tuple(row or ()), tuple(target or ())), records=tuple(records or ()),
    )  # fmt: skip
    options = ExecutorOptions(workers, address, partition, minutes, gpus)
    with progress_display() as watch:
        outcome = run_benchmark(
            request, executor, options, watch, until, math.inf if stop_after is None else stop_after
        )
    typer.echo(
        f"{out}: {outcome.done} jobs done, {outcome.found} of them before; tables: `ttdg report {out}`"
    )
    if outcome.left:
        typer.echo(f"{outcome.left} jobs are left: give the same command again to continue", err=True)
    for key, fault in outcome.damaged.items():
        if until != "score":
            again = "is scored again by a call without --until"
        else:
            again = (
                "could not be scored again"
                if key in {*outcome.failed, *outcome.blocked}
                else "was scored again"
            )
        typer.echo(f"damaged record: {fault}; it {again}", err=True)
    jobs = read_run(out).jobs if outcome.failed else {}
    for key, error in outcome.failed.items():
        log = out / "logs" / f"{key}.log"
        typer.echo(f"failed: {job_title(jobs[key])}: {error} (log: {log})", err=True)
    if outcome.blocked:
        typer.echo(f"{len(outcome.blocked)} jobs did not run because a job they need failed", err=True)
    raise typer.Exit(PARTLY if outcome.failed or outcome.left else 0)
