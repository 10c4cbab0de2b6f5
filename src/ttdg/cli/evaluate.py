"""ttdg evaluate: a checkpoint with one or more methods over labelled sites."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.cli.evaluation_notes import evaluation_notes
from ttdg.cli.options import (
    BatchOption,
    BenchmarkOption,
    DataOption,
    DeviceOption,
    ModelOption,
    SetOption,
    StatisticsOption,
    ViewsOption,
    WorkersOption,
    choose_device,
    choose_sites,
    open_data,
    options_text,
    output_folder,
    parse_settings,
)
from ttdg.cli.selection import choose_methods
from ttdg.errors import UserError

if TYPE_CHECKING:
    from ttdg.evaluation.evaluate import Evaluation

STREAMS = ("online", "episodic", "offline", "folder")


def evaluate_command(
    site: Annotated[list[str], typer.Option(help="Site to score on; may be given several times.")],
    model: ModelOption = "demo",
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="source, norm, tent, …; several times or with commas; [bold]all[/bold]: every one whose parts the "
            "model has. Default: source.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
    views: ViewsOption = "plain",
    statistics: StatisticsOption = "own",
    tuned: Annotated[
        Path | None,
        typer.Option(help="Options chosen by `ttdg tune`, from the file it wrote.", show_default=False),
    ] = None,
    batch: BatchOption = 4,
    stream: Annotated[
        str,
        typer.Option(
            help="online (reset per site), episodic (reset per batch), offline (two passes) "
            "or folder (learn the site first)."
        ),
    ] = "online",
    cases: Annotated[
        str, typer.Option(help="all images of the site, or only its held-out fifth: all, held-out.")
    ] = "all",
    shuffle: Annotated[
        int, typer.Option(help="Seed of the images' order; -1 keeps the order of names.")
    ] = -1,
    order: Annotated[
        str,
        typer.Option(
            help="site: all images in one order. volume, shuffled-volume: a batch holds slices of one volume, "
            "neighbours or any."
        ),
    ] = "site",
    surfaces: Annotated[bool, typer.Option(help="Also HD95 and ASSD.")] = False,
    deterministic: Annotated[
        bool, typer.Option(help="Repeatable gradients on a GPU, where PyTorch has them; may be slower.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for records/, records.csv and options.json.",
            show_default=False,
            callback=output_folder,
        ),
    ] = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Score methods on labelled sites: one record per image and region, and a table of means.

    Labels are used for scoring alone. Scores are computed at the network's input size. OUT collects evaluations of one
    model: another site or method adds to it, and the same site and method replace their record.

    Example: [bold]ttdg evaluate -m models/no-etis -d ~/data/polyp -b polyp --site etis --method source --method tent
    -o results/etis[/bold]

    Several methods: [bold]--method source,tent,sar[/bold]; all that this model can run: [bold]--method all[/bold]
    """
    from rich.console import Console

    from ttdg.adaptation import METHODS, effective_statistics, effective_views
    from ttdg.checkpoints import load
    from ttdg.cli.progress import progress_bar
    from ttdg.data import ORDERS
    from ttdg.data.fingerprints import fingerprint
    from ttdg.evaluation.site import Setting, evaluate_site
    from ttdg.evaluation.tuned_options import choices_for
    from ttdg.report.terminal import scores_table, summarise

    effective_views(METHODS["source"], views)
    if stream not in STREAMS:
        raise UserError(f"--stream is {', '.join(STREAMS)}, not {stream!r}")
    if order not in ORDERS:
        raise UserError(f"--order is {', '.join(ORDERS)}, not {order!r}")
    if cases not in ("all", "held-out"):
        raise UserError(f"--cases is all or held-out, not {cases!r}")
    given, loaded = parse_settings(settings), load(model, choose_device(device))
    methods = choose_methods(method or ["source"], loaded.parts, loaded.card.benchmark.task)
    if given and len(methods) > 1:
        raise UserError("--set goes with one method; evaluate the methods one by one")
    described, sites = open_data(data, benchmark or None)
    wanted = choose_sites(sites, site)
    bases = {each: effective_statistics(METHODS[each], statistics) for each in methods}
    searched = choices_for(tuned, loaded.card.sha256, wanted, methods, batch, stream, bases) if tuned else {}
    options = {
        each: all_options(each, searched[each].options if each in searched else {}, given) for each in methods
    }
    prints: dict[str, str] = {}
    if out is not None:
        prints = {name: fingerprint(chosen.cases) for name, chosen in wanted.items()}
        images = {"cases": cases, "shuffled": shuffle >= 0, "order": order}
        _check_folder(out, loaded.card.sha256, options, images, prints)
    for note in evaluation_notes(methods, wanted, loaded.card.sources, searched, given, batch, stream):
        typer.echo(note, err=True)
    for each in methods:
        missing = tuned is not None and each not in searched and bool(options[each])
        rest = f"not in {tuned}, runs with its defaults{' and --set' if given else ''}: " if missing else ""
        typer.echo(f"{each}: {rest}{options_text(options[each])}")
    evaluations = []
    for name, chosen in wanted.items():
        for each in methods:
            own = effective_views(METHODS[each], views)
            setting = Setting(
                name, each, stream, batch, max(shuffle, 0), own, bases[each], deterministic,  # type: ignore[arg-type]
            )  # fmt: skip
            with progress_bar(f"{each} on {name}", len(chosen.cases)) as progress:
                result = evaluate_site(
                    loaded, chosen, described, setting, options=options[each], held_out=cases == "held-out",
                    shuffle=shuffle >= 0, order=order, surfaces=surfaces,  # type: ignore[arg-type]
                    workers=workers, progress=progress,
                )  # fmt: skip
            evaluations.append(result)
            if out is not None:
                _save(out, result, prints[name])
    if out is not None:
        _write_overview(out, loaded.card.sha256, tuned)
    Console().print(scores_table(summarise(evaluations), f"{stream}, batch {batch}; means over every image"))


def _check_folder(
    out: Path,
    model: str,
    options: Mapping[str, Mapping[str, Any]],
    images: Mapping[str, Any],
    prints: Mapping[str, str],
) -> None:
    """Refuse a folder whose evaluations cannot stand in one table with these, before anything runs.

    A folder holds evaluations of one model, on one choice and order of images, with one set of options per method.
    `prints` holds the fingerprints of the sites that are scored.
    """
    from ttdg.evaluation.records import read_about

    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    for about in map(read_about, _records(out)):
        other = ""
        if about["model"] != model:
            other = "another model"
        elif {name: {"order": "site", **about}.get(name) for name in images} != images:
            other = "another choice or order of images"
        elif about.get("data") not in (None, prints.get(about["site"], about["data"])):
            other = f"other images or masks of {about['site']}"
        elif about["options"] != options.get(about["method"], about["options"]):
            other = f"{about['method']} with other options"
        if other:
            raise UserError(f"--out {out} holds evaluations of {other}; choose another folder")


def _records(out: Path) -> list[Path]:
    """Return the complete record files of a folder."""
    from ttdg.evaluation.records import SUFFIX

    return sorted(path for path in out.glob(f"records/*{SUFFIX}") if not path.name.startswith("."))


def _save(out: Path, result: "Evaluation", data: str) -> None:
    """Write the record of one site and method, in the format of `ttdg bench`; `data` is the site's fingerprint."""
    from ttdg.evaluation.records import SUFFIX, label_of, write_rows

    about = {**result.about, "method": label_of(result.about)}
    name = ".".join(str(about[field]) for field in ("site", "method", "stream", "batch", "seed"))
    write_rows(out / "records" / f"{name}{SUFFIX}", {**result.about, "data": data}, result.rows)


def _write_overview(out: Path, model: str, tuned: Path | None) -> None:
    """Write records.csv and options.json over all records of the folder."""
    import json

    from ttdg.evaluation.records import read_about, read_rows, write_wide
    from ttdg.files import write_text

    records = [(read_about(path), read_rows(path)) for path in _records(out)]
    lines = write_wide(out / "records.csv", records)
    methods = {about["method"]: about["options"] for about, _ in records}
    about = {"model": model, "tuned": tuned, "methods": methods}
    write_text(out / "options.json", json.dumps(about, indent=2, default=str) + "\n")
    typer.echo(f"{out / 'records.csv'}: {lines} rows")


def all_options(method: str, searched: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a method: defaults, then tuned options, then options given by hand; the last one counts."""
    from ttdg.adaptation import checked, defaults

    chosen = {name: checked(method, name, value) for name, value in {**searched, **given}.items()}
    return {**defaults(method), **chosen}
