"""Addresses of sites: the list, the form, uploads, the page of a site and its events."""

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

from ttdg.errors import UserError, suggestion
from ttdg.page.events import OpenPage, site_events
from ttdg.page.html import page, workspace_of
from ttdg.page.queue_rows import by_risk, queue_rows
from ttdg.page.sites import IDENTIFIER, OPEN, folder_title
from ttdg.page.uploads import receive_upload

router = APIRouter()


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
    folders, known = map(str, workspace.settings.folders), workspace.settings.known_folders()
    methods = {name: workspace.methods(name) for name in workspace.settings.models}
    return page(
        request, "sites.html", sites=workspace.store.all(), models=workspace.model_titles(), methods=methods,
        folders=list(folders), known_folders=known, titles={folder: folder_title(Path(folder)) for folder in known},
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
    folder = workspace.settings.image_folder(wanted.folder) if wanted.folder.strip() else None
    title, images = wanted.title.strip() or folder_title(folder), str(folder or "")
    site = workspace.store.create(title, wanted.model, wanted.method, images)
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
        model=workspace.model_titles().get(site.model, site.model),
    )  # fmt: skip


@router.get("/sites/{identifier}/images/{key}.{size}.jpg")
def show_preview(request: Request, identifier: str, key: str, size: str) -> Response:
    """A preview; never the bytes of the original."""
    store = workspace_of(request).store
    folder = store.folder(store.get(identifier).id)
    path = folder / "shown" / f"{key}{'.small' if size == 'small' else ''}.jpg"
    if not IDENTIFIER.fullmatch(key) or not path.is_file():
        return Response(status_code=404)
    return FileResponse(path, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


@router.get("/sites/{identifier}/events")
async def events(request: Request, identifier: str, since: int = 0) -> StreamingResponse:
    """Events with the changes of a site, from a position of its journal on; a browser opens them again by itself."""
    workspace = workspace_of(request)
    opened = OpenPage(workspace, workspace.store.get(identifier).id, max(0, since))
    return StreamingResponse(site_events(request, opened), media_type="text/event-stream")
