"""Events of a site: what changed since the last event, pushed to each open page as soon as it happens."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import Request

from ttdg.errors import UserError
from ttdg.page.contours import read_outlines, region_colours
from ttdg.page.findings import findings_stamp
from ttdg.page.html import part
from ttdg.page.live import read_live
from ttdg.page.queue_rows import QueueRow, queue_rows
from ttdg.page.sites import OPEN, SiteRequest
from ttdg.page.workspace import Workspace

LOOK = 1.0  # seconds after which a site is looked at even if no change was reported
ALIVE = 15.0  # seconds after which an event is sent even if nothing changed
PAUSE = 0.02  # seconds between two events of one page, at least


@dataclass
class OpenPage:
    """What one open page knows of its site; `news` returns the rest."""

    workspace: Workspace
    site: str
    known: int = 0  # rows of the queue
    _told: dict[str, Any] = field(default_factory=dict)  # name → the value that was sent last

    def news(self) -> dict[str, Any]:
        """Return the state of the site, and those larger parts of the page that changed."""
        site = self.workspace.store.get(self.site)
        folder = self.workspace.store.folder(site.id)
        rows = queue_rows(folder)
        news = site_state(self.workspace, site, rows)
        if len(rows) < self.known:
            self.known, news["reset"] = 0, True
        if new := rows[self.known :]:
            news["rows"] = part("rows.html", rows=new, site=site)
            news["case"] = case_html(self.workspace, site, new[-1])
            self.known = len(rows)
        decided = {row.key: row.verdict for row in rows if row.verdict != "undecided"}
        if self._changed("decided", decided):
            news["decided"] = decided
        step = (news["state"], news["watched"]) if news["state"] in OPEN and not rows else None
        if self._changed("live", step) and step and (live := read_live(folder)):
            news["live"] = part("live.html", site=site, live=live, colours=_colours(self.workspace, site))
        return news

    def _changed(self, name: str, value: Any) -> bool:
        changed = self._told.get(name) != value
        self._told[name] = value
        return changed


async def site_events(request: Request, page: OpenPage) -> AsyncIterator[str]:
    """Yield an event for each change of a site, until the browser leaves or the site is deleted."""
    last, sent, changes = "", 0.0, page.workspace.store.changes
    while not await request.is_disconnected():
        count = changes.count
        try:
            text = json.dumps(await asyncio.to_thread(page.news))
        except UserError:
            yield "event: gone\ndata: {}\n\n"
            return
        if text != last or time.monotonic() - sent > ALIVE:
            yield f"data: {text}\n\n"
            last, sent = text, time.monotonic()
        await asyncio.sleep(PAUSE)
        await changes.after(count, LOOK)


def site_state(workspace: Workspace, site: SiteRequest, rows: tuple[QueueRow, ...]) -> dict[str, Any]:
    """Return what changes while a site is learned."""
    others = workspace.store.all() if site.state == "waiting" else []
    ahead = [other for other in others if other.state in OPEN and other.created < site.created]
    return {
        **asdict(workspace.worker.progress(site.id)),
        "state": site.state,
        "message": site.message,
        "ahead": len(ahead),
        "answers": len(rows),
        "findings": findings_stamp(workspace.store.folder(site.id), site, rows),
    }


def case_html(workspace: Workspace, site: SiteRequest, row: QueueRow) -> str:
    """Return one image with both contours and its facts."""
    shown = workspace.store.folder(site.id) / "shown"
    return part(
        "case.html", site=site, row=row, entry=row.entry, labels=workspace.model(site.model).card.benchmark.labels,
        outlines=read_outlines(shown, row.key) if row.done else None, colours=_colours(workspace, site),
    )  # fmt: skip


def _colours(workspace: Workspace, site: SiteRequest) -> dict[str, int]:
    return region_colours(workspace.model(site.model).card.benchmark.regions)
