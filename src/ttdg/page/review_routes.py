"""Addresses of one image: its contours and facts, decisions, corrections, and the export of a site."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from pydantic import BaseModel, Field

from ttdg.data import Benchmark
from ttdg.errors import UserError
from ttdg.page.events import case_html
from ttdg.page.findings import site_findings
from ttdg.page.html import page, workspace_of
from ttdg.page.queue_rows import QueueRow, find_row, queue_rows
from ttdg.page.review import Stroke, correct, decide, restore, write_export
from ttdg.page.sites import SiteRequest

router = APIRouter()
REPORT_HEADERS = {
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'"
}


class Decision(BaseModel):
    """A decision about an answer."""

    verdict: str = Field(max_length=20)


class Correction(BaseModel):
    """Strokes of the brush."""

    strokes: list[Stroke] = Field(min_length=1, max_length=500)


@router.get("/sites/{identifier}/images/{key}")
def show_case(request: Request, identifier: str, key: str) -> Response:
    """One image with both contours and its facts, as a part of the page."""
    site, _, row, _ = _case(request, identifier, key)
    text = case_html(workspace_of(request), site, row)
    return HTMLResponse(text.encode(errors="replace"))


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
    workspace_of(request).store.changes.report()
    return {"verdict": wanted.verdict}


@router.post("/sites/{identifier}/images/{key}/strokes")
def correct_case(request: Request, identifier: str, key: str, wanted: Correction) -> dict[str, str]:
    """Draw strokes into the mask of an image."""
    _, folder, row, benchmark = _case(request, identifier, key)
    if not row.done:
        raise UserError("this file has no mask to correct")
    correct(folder, row, wanted.strokes, benchmark)
    workspace_of(request).store.changes.report()
    return {"verdict": "corrected"}


@router.get("/sites/{identifier}/export.zip")
def export_site(request: Request, identifier: str) -> FileResponse:
    """All masks, the decisions, and the manifest, report, order of review and audit log of `predict`."""
    store = workspace_of(request).store
    folder = store.folder(store.get(identifier).id)
    return FileResponse(
        write_export(folder, folder / "export.zip"),
        media_type="application/zip",
        filename=f"masks-{identifier}.zip",
    )


@router.get("/sites/{identifier}/findings")
def show_findings(request: Request, identifier: str) -> Response:
    """Method, drift, gate and audit log of a site, as a part of the page."""
    store = workspace_of(request).store
    site = store.get(identifier)
    folder = store.folder(site.id)
    return page(request, "findings.html", site=site, found=site_findings(folder, site, queue_rows(folder)))


@router.get("/sites/{identifier}/report.html")
def show_report(request: Request, identifier: str) -> FileResponse:
    """The report that `predict` wrote; it holds its own style and small pictures, and no script may run."""
    store = workspace_of(request).store
    path = store.out(store.get(identifier)) / "report.html"
    if not path.is_file():
        raise UserError("the report is written when all images are answered; wait for the end of the run")
    return FileResponse(path, media_type="text/html; charset=utf-8", headers=REPORT_HEADERS)


def _case(request: Request, identifier: str, key: str) -> tuple[SiteRequest, Path, QueueRow, Benchmark]:
    workspace = workspace_of(request)
    site = workspace.store.get(identifier)
    folder = workspace.store.folder(site.id)
    row = find_row(folder, key)
    if row is None:
        raise UserError("this site has no such image")
    return site, folder, row, workspace.model(site.model).card.benchmark
