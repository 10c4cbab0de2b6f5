"""ttdg tune: hyper-parameters of methods, chosen on simulated hospitals made of held-out source images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ttdg.cli.evaluate import STREAMS
from ttdg.cli.options import (
    BatchOption,
    BenchmarkOption,
    DataOption,
    DeviceOption,
    ModelOption,
    choose_device,
    choose_sites,
    open_data,
    options_text,
)
from ttdg.cli.selection import choose_methods, unique_names
from ttdg.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ttdg.checkpoints import Model
    from ttdg.evaluation.tuning import Search


def tune_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="The yaml to write: choices and every trial.")],
    model: ModelOption = "demo",
    data: DataOption = None,
    benchmark: BenchmarkOption = None,
    site: Annotated[
        list[str] | None,
        typer.Option(
            help="Source site; several times. Default: all the model was trained at.", show_default=False
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method; several times or with commas. Default: all that can run.", show_default=False
        ),
    ] = None,
    hospitals: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Simulated hospitals. Default: 3 to 8, fewer the longer their streams.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images of each hospital's stream, as many as a new site will have; held-out images are shown again "
            "until there are enough. Default: those of the largest source site, at most 400.",
            show_default=False,
        ),
    ] = None,
    batch: BatchOption = 4,
    stream: Annotated[
        str, typer.Option(help="The stream that the method will run on: online, episodic, offline or folder.")
    ] = "online",
    farthest: Annotated[
        float,
        typer.Option(
            min=0,
            help="Strength of the last hospital's shift; the strengths of the others rise evenly to it.",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the hospitals.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Choose hyper-parameters on simulated hospitals made of held-out source images, never on a target.

    Every method gets the same budget: at most six configurations of its grid, its published settings, and up to three
    more while the best one lies at an edge of the grid. Use the batch size and the stream of the later evaluation.
    A stopped search resumes.

    Example: [bold]ttdg tune -m models/no-etis -d ~/data/polyp -b polyp -o tuned.yaml[/bold]
    """
    from rich.console import Console

    from ttdg.checkpoints import load
    from ttdg.data import check_provenance, load_sources
    from ttdg.evaluation import tuned_options, tuning
    from ttdg.evaluation.site import benchmark_for_model

    if stream not in STREAMS:
        raise UserError(f"--stream is {', '.join(STREAMS)}, not {stream!r}")
    loaded = load(model, choose_device(device))
    described, sites = open_data(data, benchmark or None)
    names = chosen_sites(loaded, site, list(sites))
    sources = choose_sites(sites, names)
    length = tuning.stream_length(images, [len(source.cases) for source in sources.values()])
    search = tuning.Search(
        hospitals or tuning.hospital_count(length), length, batch, farthest, seed,
        stream=stream, repeat=True, extensions=tuning.EXTENSIONS,  # type: ignore[arg-type]
    )  # fmt: skip
    methods = choose_methods(method or ["all"], loaded.parts, loaded.card.benchmark.task)
    opened = load_sources(sources, benchmark_for_model(loaded.card, described))
    check_provenance(opened.provenance, loaded.card.sources)
    read = opened.held_out
    held_out, used = tuning.with_images(list(read.values())), [name for name in names if read[name].cases]
    if left := [name for name in names if name not in used]:
        typer.echo(f"without {', '.join(left)}: no held-out images")
    about = {"benchmark": described.name, "model": loaded.card.sha256, "sources": used, **search.to_dict()}
    done, console = tuned_options.read_search(out, about), Console()
    if few := repetition_note(tuning.distinct_images(held_out, search), used, search):
        typer.echo(few, err=True)
    for name in methods:
        if name not in done:
            done[name] = tuning.search_record(tuning.tune(loaded, name, held_out, search))
            tuned_options.write_search(out, about, done)
        console.print(f"[bold]{name}[/bold]: {search_line(done[name])}")
    typer.echo(f"{out}: {len(done)} methods")


def chosen_sites(model: "Model", wanted: list[str] | None, found: list[str]) -> list[str]:
    """Return the source sites to tune on; sites that the model was not trained on are refused."""
    sources = list(model.card.sources)
    for name in wanted or []:
        if name not in sources:
            raise UserError(
                f"{name!r} is no source of this model, and settings are never chosen on a target; "
                f"its sources are {', '.join(sources)}"
            )
    names = unique_names(wanted or []) or [name for name in sources if name in found]
    if not names:
        raise UserError(f"none of the model's sources ({', '.join(sources)}) is in this benchmark folder")
    return names


def repetition_note(distinct: "Sequence[int]", sites: "Sequence[str]", search: "Search") -> str | None:
    """Return a note about hospitals that have fewer different images than their stream is long."""
    if all(count >= search.images for count in distinct):
        return None
    counts = ", ".join(f"{count} of {sites[n % len(sites)]}" for n, count in enumerate(distinct))
    return (
        f"--images {search.images}, and a hospital shows the held-out images of one source site, again in another "
        f"order until there are enough; different images: {counts}"
    )


def search_line(tuned: dict[str, Any]) -> str:
    """Return the chosen options, their score and the spread of all scores in one line."""
    from ttdg.evaluation.tuned_options import indistinguishable, recorded_spread

    spread, alike = recorded_spread(tuned), indistinguishable(tuned)
    return (
        f"{options_text(tuned['chosen'])}; Dice {tuned['dice']:.1f} (spread {spread:.2f} over {len(tuned['trials'])} "
        f"configurations{', not distinguishable' if alike else ''})"
    )
