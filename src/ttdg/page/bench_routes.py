"""Addresses of benchmark runs: the list, tables with filters, plots, and the images behind a cell."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from ttdg.errors import UserError
from ttdg.page.html import page, workspace_of
from ttdg.page.runs import FILTERS, count_records, open_run
from ttdg.page.worst import draw_worst, drawing_plan
from ttdg.report.aggregate import select_group
from ttdg.report.figures.answers import folder_with_models
from ttdg.report.figures.plots import dice_boxplots, difference_curves

router = APIRouter(prefix="/runs")


@router.get("")
def show_runs(request: Request) -> Response:
    """The runs that the command named."""
    return page(
        request, "runs.html", runs=[count_records(folder) for folder in workspace_of(request).settings.runs]
    )


@router.get("/{number}")
def show_run(request: Request, number: int) -> Response:
    """The tables and plots of a run, as far as it is."""
    folder = _folder(request, number)
    counts, wanted = count_records(folder), {name: request.query_params.get(name, "") for name in FILTERS}
    values: dict[str, Any] = {"shown": [], "choices": {}, "trouble": ""}
    try:
        run = open_run(folder)
        values |= {"shown": run.filtered(wanted), "choices": run.choices()}
    except UserError as error:  # no record yet
        values["trouble"] = str(error)
    runs = [count_records(other) for other in workspace_of(request).settings.runs]
    return page(request, "run.html", number=number, counts=counts, wanted=wanted, runs=runs, **values)


@router.get("/{number}/state")
def run_state(request: Request, number: int) -> dict[str, Any]:
    """How many scorings have a record."""
    return asdict(count_records(_folder(request, number)))


@router.get("/{number}/plots/{group}/{kind}.png")
def plot(request: Request, number: int, group: int, kind: str) -> Response:
    """A plot of one group: the Dice of every image by site, or the differences to the baseline."""
    run = open_run(_folder(request, number))
    if not 0 <= group < len(run.groups) or kind not in ("sites", "differences"):
        return Response(status_code=404)
    images = select_group(run.images, run.groups[group])
    drawn = dice_boxplots(images) if kind == "sites" else difference_curves(images, run.table.run.baseline)
    return Response(drawn, media_type="image/png")


@router.get("/{number}/cell")
def show_cell(request: Request, number: int, group: int, method: str, column: str) -> Response:
    """The images behind a cell, the worst first."""
    folder = _folder(request, number)
    run = open_run(folder)
    images = run.cell_images(group, method, column)
    available = bool(images) and folder_with_models(run.table.run, folder) is not None
    seconds = drawing_plan(run, group, method, column)[1] if available else 0.0
    return page(
        request, "cell.html", number=number, group=group, method=method, column=column, images=images,
        baseline=run.table.run.baseline, available=available, seconds=seconds,
    )  # fmt: skip


@router.get("/{number}/worst.png")
def show_worst(request: Request, number: int, group: int, method: str, column: str) -> FileResponse:
    """A picture of the worst images of a cell, with each method's contour beside the truth."""
    folder = _folder(request, number)
    cache = workspace_of(request).settings.work / "pictures"
    return FileResponse(
        draw_worst(open_run(folder), folder, group, method, column, cache), media_type="image/png"
    )


def _folder(request: Request, number: int) -> Path:
    runs = workspace_of(request).settings.runs
    if not 0 <= number < len(runs):
        raise UserError("there is no such run")
    return runs[number]
