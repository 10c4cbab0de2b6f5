"""The FastAPI application of the page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from ttdg.errors import UserError
from ttdg.page import bench_routes, matching_routes, review_routes, site_routes
from ttdg.page.html import page
from ttdg.page.security import Guard, load_secret
from ttdg.page.settings import PageSettings
from ttdg.page.workspace import Workspace
from ttdg.report.rendering import compile_templates

STATIC = {"page.css": "text/css", "site.js": "text/javascript", "brush.js": "text/javascript",
          "matching.js": "text/javascript", "form.js": "text/javascript", "common.js": "text/javascript",
          "bench.js": "text/javascript"}  # fmt: skip


def create_app(settings: PageSettings) -> Any:
    """Return the page as an ASGI application. The worker runs from its start to its end."""
    workspace = Workspace(settings)
    compile_templates("ttdg.page")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        workspace.worker.start()
        yield

    app = FastAPI(title="ttdg", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.workspace = workspace
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(404, _missing)
    for routes in (site_routes, review_routes, matching_routes, bench_routes):
        app.include_router(routes.router)
    app.get("/static/{name}")(static)
    return Guard(app, settings, load_secret(settings.work))


async def static(name: str) -> Response:
    """Return a style sheet or a script of the package."""
    if name not in STATIC:
        return Response(status_code=404)
    return Response(
        _static_text(name), media_type=f"{STATIC[name]}; charset=utf-8", headers={"cache-control": "no-cache"}
    )


@cache
def _static_text(name: str) -> str:
    return (resources.files("ttdg.page") / "static" / name).read_text(encoding="utf-8")


async def _user_error(request: Request, error: Exception) -> Response:
    return _refusal(request, 400, str(error))


async def _invalid(request: Request, error: Exception) -> Response:
    return _refusal(request, 422, "the request has a missing or wrong field; reload the page")


async def _missing(request: Request, error: Exception) -> Response:
    return _refusal(request, 404, "there is nothing at this address")


def _refusal(request: Request, status: int, reason: str) -> Response:
    """Answer a script with JSON, and a person with a page."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return page(request, "error.html", status=status, reason=reason)
    return JSONResponse({"reason": reason}, status_code=status)
