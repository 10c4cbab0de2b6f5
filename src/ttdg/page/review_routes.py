"""Addresses of one image: its contours and facts, decisions, corrections, and the export of a site."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from ttdg.data import Benchmark
from ttdg.errors import UserError
from ttdg.page.contours import read_outlines, region_colours
from ttdg.page.html import page, workspace_of
from ttdg.page.queue_rows import QueueRow, find_row
from ttdg.page.review import Stroke, correct, decide, restore, zip_site
from ttdg.page.sites import SiteRequest

router = APIRouter()


class Decision(BaseModel):
    """A decision about an answer."""

    verdict: str = Field(max_length=20)


class Correction(BaseModel):
    """Strokes of the brush."""

    strokes: list[Stroke] = Field(min_length=1, max_length=500)


@router.get("/sites/{identifier}/images/{key}")
def show_case(request: Request, identifier: str, key: str) -> Response:
    """One image with both contours and its facts, as a part of the page."""
    site, folder, row, benchmark = _case(request, identifier, key)
    outlines = read_outlines(folder / "shown", key) if row.done else None
    return page(
        request, "case.html", site=site, row=row, entry=row.entry, outlines=outlines, labels=benchmark.labels,
        colours=region_colours(benchmark.regions),
    )  # fmt: skip


@router.post("/sites/{identifier}/images/{key}/verdict")
def decide_case(request: Request, identifier: str, key: str, wanted: Decision) -> dict[str, str]:
    """Accept or flag an answer, or take the decision back, which also undoes corrections."""
    _, folder, row, benchmark = _case(request, identifier, key)
    if not row.done:
        raise UserError("this file has no mask to decide about")
    if wanted.verdict == "corrected":
        raise UserError("an answer is corrected by strokes of the brush")
    if wanted.verdict == "undecided":
        restore(folder, row, benchmark)
    else:
        decide(folder, row, wanted.verdict)
    return {"verdict": wanted.verdict}


@router.post("/sites/{identifier}/images/{key}/strokes")
def correct_case(request: Request, identifier: str, key: str, wanted: Correction) -> dict[str, str]:
    """Draw strokes into the mask of an image."""
    _, folder, row, benchmark = _case(request, identifier, key)
    if not row.done:
        raise UserError("this file has no mask to correct")
    correct(folder, row, wanted.strokes, benchmark)
    return {"verdict": "corrected"}


@router.get("/sites/{identifier}/export.zip")
def export_site(request: Request, identifier: str) -> FileResponse:
    """All masks, the manifest and the decisions."""
    store = workspace_of(request).store
    folder = store.folder(store.get(identifier).id)
    return FileResponse(
        zip_site(folder, folder / "export.zip"),
        media_type="application/zip",
        filename=f"masks-{identifier}.zip",
    )


def _case(request: Request, identifier: str, key: str) -> tuple[SiteRequest, Path, QueueRow, Benchmark]:
    workspace = workspace_of(request)
    site = workspace.store.get(identifier)
    folder = workspace.store.folder(site.id)
    row = find_row(folder, key)
    if row is None:
        raise UserError("this site has no such image")
    return site, folder, row, workspace.model(site.model).card.benchmark
