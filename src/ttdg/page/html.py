"""HTML answers from the templates of this package."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from ttdg.page.workspace import Workspace
from ttdg.report.rendering import render_html


def page(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Render a whole page; every template may use `csrf` and `here`, the first part of the address."""
    here = request.url.path.strip("/").partition("/")[0] or "sites"
    text = part(template, csrf=request.scope["csrf"], here=here, status=status, **values)
    return HTMLResponse(text.encode(errors="replace"), status_code=status)  # names may hold undecodable bytes


def part(template: str, **values: object) -> str:
    """Render a part of a page."""
    return render_html(template, package="ttdg.page", **values)


def workspace_of(request: Request) -> Workspace:
    """Return the workspace of the application."""
    workspace: Workspace = request.app.state.workspace
    return workspace
