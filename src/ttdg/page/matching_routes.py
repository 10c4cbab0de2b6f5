"""Addresses of the matching: the page, and the nodes and matches of some images as JSON."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from ttdg.checkpoints import Model
from ttdg.data import Arrays
from ttdg.errors import UserError
from ttdg.newsite.inputs import find_files
from ttdg.page.contours import read_outlines, region_colours
from ttdg.page.html import page, workspace_of
from ttdg.page.matching import MOST, carried_labels, match_images, read_images
from ttdg.page.queue_rows import QueueRow, by_risk, queue_rows
from ttdg.page.workspace import Workspace

router = APIRouter(prefix="/matching")
SHOWN = 4  # images that are chosen at first


@router.get("")
def show_matching(
    request: Request, site: str = "", image: Annotated[list[str] | None, Query()] = None
) -> Response:
    """The page: a site, some of its images, and their matching."""
    workspace = workspace_of(request)
    sites = [other for other in workspace.store.all() if _usual(queue_rows(workspace.store.folder(other.id)))]
    chosen = next((other for other in sites if other.id == site), sites[0] if sites and not site else None)
    rows = _usual(queue_rows(workspace.store.folder(chosen.id))) if chosen else []
    known = {row.key for row in rows}
    picked = [key for key in image or () if key in known][:MOST] or [row.key for row in _spread(rows)]
    return page(
        request, "matching.html", sites=sites, site=chosen, rows=rows, picked=picked, most=MOST,
        has_prior=chosen is not None and "prior" in workspace.model(chosen.model).parts,
    )  # fmt: skip


Keys = Annotated[list[str], Query(min_length=2, max_length=MOST)]


@router.get("/{identifier}/data")
def matching_data(request: Request, identifier: str, image: Keys) -> dict[str, Any]:
    """Nodes and matches of the images of a site."""
    workspace = workspace_of(request)
    model, rows, arrays = _read(workspace, identifier, image)
    found = match_images(model, arrays)
    for shown, row in zip(found["images"], rows, strict=True):
        outlines = read_outlines(workspace.store.folder(identifier) / "shown", row.key)
        shown |= {"key": row.key, "file": row.entry.file.encode(errors="replace").decode()}
        shown |= {name: outlines[name] for name in ("width", "height")}
    return {**found, "carried": {}, "colours": region_colours(model.card.benchmark.regions)}


@router.get("/{identifier}/carried")
def matching_carried(request: Request, identifier: str, image: Keys) -> dict[str, Any]:
    """Labels that are carried from the sure images to the others; this takes longer than the matching."""
    model, _, arrays = _read(workspace_of(request), identifier, image)
    return carried_labels(model, arrays)


def _read(workspace: Workspace, identifier: str, keys: list[str]) -> tuple[Model, list[QueueRow], Arrays]:
    """Read the images of a site with these keys."""
    site = workspace.store.get(identifier)
    folder, model = workspace.store.folder(site.id), workspace.model(site.model)
    known = {row.key: row for row in _usual(queue_rows(folder))}
    if not set(keys) <= known.keys():
        raise UserError("this site has no such image; reload the page")
    rows = [known[key] for key in keys]
    paths = {found.file: found for found in find_files([workspace.store.inputs(site)], folder / "out").images}
    files = [paths[row.entry.file] for row in rows if row.entry.file in paths]
    if len(files) < len(rows):
        raise UserError("an image is no longer in its folder; choose other images")
    return model, rows, read_images(model, files, workspace.settings.most_pixels)


def _usual(rows: tuple[QueueRow, ...]) -> list[QueueRow]:
    """Return the answered images, the most doubtful first."""
    return [row for row in by_risk(rows) if row.done and not row.entry.unusual]


def _spread(rows: list[QueueRow]) -> list[QueueRow]:
    """Return images evenly spaced from the surest to the least sure."""
    count = min(SHOWN, len(rows))
    return [rows[-1 - i * (len(rows) - 1) // max(1, count - 1)] for i in range(count)]
