"""Addresses of sites: the list, the form, uploads, the page of a site and its events."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

from ttdg.errors import UserError, suggestion
from ttdg.page.findings import findings_stamp
from ttdg.page.html import page, workspace_of
from ttdg.page.queue_rows import by_risk, find_row, queue_rows
from ttdg.page.sites import OPEN, SiteRequest
from ttdg.page.uploads import receive_upload
from ttdg.page.workspace import Workspace

router = APIRouter()
PAUSE, IDLE = 0.02, 0.25  # seconds between two looks at a site that is running, and at another one
ALIVE = 15.0  # seconds after which an event is sent even if nothing changed


class NewSite(BaseModel):
    """The form of a new site."""

    title: str = Field(default="", max_length=500)
    model: str = Field(max_length=4096)
    method: str = Field(max_length=100)
    folder: str = Field(default="", max_length=4096)  # empty: images are uploaded


@router.get("/")
def show_sites(request: Request) -> Response:
    """The sites, and the form of a new one."""
    workspace = workspace_of(request)
    folders = [str(folder) for folder in workspace.settings.folders]
    methods = {name: workspace.methods(name) for name in workspace.settings.models}
    return page(
        request, "sites.html", sites=workspace.store.all(), models=workspace.model_titles(), methods=methods,
        folders=folders, known_folders=workspace.settings.known_folders(),
        about={name: workspace.about(name) for names in methods.values() for name in names},
        most_megabytes=workspace.settings.most_bytes // 1_000_000, most_files=workspace.settings.most_files,
    )  # fmt: skip


@router.post("/sites")
def add_site(request: Request, wanted: NewSite) -> dict[str, str]:
    """Add a site. A site with a named folder starts at once, one with uploads after them."""
    workspace = workspace_of(request)
    methods = workspace.methods(wanted.model)
    if wanted.method not in methods:
        raise UserError(
            f"this model cannot use the method {wanted.method!r}{suggestion(wanted.method, methods)}"
        )
    images = str(workspace.settings.image_folder(wanted.folder)) if wanted.folder.strip() else ""
    site = workspace.store.create(wanted.title, wanted.model, wanted.method, images)
    if images:
        workspace.worker.submit(site.id)
    return {"id": site.id}


@router.put("/sites/{identifier}/images")
async def upload(request: Request, identifier: str, name: str) -> dict[str, str]:
    """Store one image file of a site that has not started."""
    workspace = workspace_of(request)
    site = workspace.store.get(identifier)
    if site.state != "new" or site.images:
        raise UserError("this site has started; make another site for further images")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > workspace.settings.most_bytes:
        raise UserError(
            f"the file has more than {workspace.settings.most_bytes // 1_000_000} MB; name a folder instead"
        )
    return {
        "name": await receive_upload(workspace.store.inputs(site), name, request.stream(), workspace.settings)
    }


@router.post("/sites/{identifier}/start")
def start(request: Request, identifier: str) -> dict[str, str]:
    """Start a new site, or continue one that was stopped or failed."""
    workspace = workspace_of(request)
    if workspace.store.get(identifier).state not in (*OPEN, "done"):
        workspace.worker.submit(identifier)
    return {"id": identifier}


@router.post("/sites/{identifier}/stop")
def stop(request: Request, identifier: str) -> dict[str, str]:
    """Stop a site after its present batch."""
    workspace = workspace_of(request)
    if workspace.store.get(identifier).state in OPEN:
        workspace.worker.stop(identifier)
    return {"id": identifier}


@router.delete("/sites/{identifier}")
def delete(request: Request, identifier: str) -> dict[str, str]:
    """Delete a site that is not running."""
    workspace = workspace_of(request)
    if workspace.store.get(identifier).state in OPEN:
        raise UserError("the site is running; stop it first")
    workspace.store.delete(identifier)
    return {"id": identifier}


@router.get("/sites/{identifier}")
def show_site(request: Request, identifier: str) -> Response:
    """The page of a site, with all answers so far."""
    workspace = workspace_of(request)
    site = workspace.store.get(identifier)
    rows = queue_rows(workspace.store.folder(site.id))
    return page(
        request, "site.html", site=site, rows=by_risk(rows), known=len(rows),
        state=site_state(workspace, site), model=workspace.model_titles().get(site.model, site.model),
    )  # fmt: skip


@router.get("/sites/{identifier}/rows")
def show_rows(request: Request, identifier: str, since: int = 0) -> Response:
    """The rows of the queue from a position of the journal on, as HTML."""
    workspace = workspace_of(request)
    rows = queue_rows(workspace.store.folder(workspace.store.get(identifier).id))
    return page(request, "rows.html", rows=rows[max(0, since) :], site=workspace.store.get(identifier))


@router.get("/sites/{identifier}/images/{key}.{size}.jpg")
def show_preview(request: Request, identifier: str, key: str, size: str) -> Response:
    """A preview; never the bytes of the original."""
    store = workspace_of(request).store
    folder = store.folder(store.get(identifier).id)
    path = folder / "shown" / f"{key}{'.small' if size == 'small' else ''}.jpg"
    if find_row(folder, key) is None or not path.is_file():
        return Response(status_code=404)
    return FileResponse(path, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


@router.get("/sites/{identifier}/events")
async def events(request: Request, identifier: str) -> StreamingResponse:
    """Events with the state of a site, one for each change. The browser opens them again after a restart."""
    workspace = workspace_of(request)
    workspace.store.get(identifier)
    return StreamingResponse(_events(request, workspace, identifier), media_type="text/event-stream")


async def _events(request: Request, workspace: Workspace, identifier: str) -> AsyncIterator[str]:
    last, waited = "", 0.0
    while not await request.is_disconnected():
        try:
            state = await asyncio.to_thread(lambda: site_state(workspace, workspace.store.get(identifier)))
        except UserError:
            yield "event: gone\ndata: {}\n\n"
            return
        text = json.dumps(state)
        if text != last or waited > ALIVE:
            yield f"data: {text}\n\n"
            last, waited = text, 0.0
        pause = PAUSE if state["state"] == "running" else IDLE
        waited += pause
        await asyncio.sleep(pause)


def site_state(workspace: Workspace, site: SiteRequest) -> dict[str, Any]:
    """Return what changes while a site is learned."""
    rows = queue_rows(workspace.store.folder(site.id))
    counts, verdicts = workspace.worker.progress(site.id), {row.key: row.verdict for row in rows}
    others = workspace.store.all() if site.state == "waiting" else []
    ahead = [other for other in others if other.state in OPEN and other.created < site.created]
    return {
        **asdict(counts),
        "state": site.state,
        "message": site.message,
        "ahead": len(ahead),
        "answers": len(rows),
        "latest": rows[-1].key if rows else "",
        "findings": findings_stamp(workspace.store.folder(site.id), site, rows),
        "decided": {key: verdict for key, verdict in verdicts.items() if verdict != "undecided"},
    }
