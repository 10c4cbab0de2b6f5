"""The sites of a work folder: what was asked for, and how far it is. All state is in files."""

import asyncio
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ttdg.errors import UserError
from ttdg.files import write_text

IDENTIFIER = re.compile(r"[0-9a-f]{16}")
OPEN = ("waiting", "running")  # states that a restarted server continues


@dataclass(frozen=True)
class SiteRequest:
    """One site: the request of a user and its state."""

    id: str
    title: str
    model: str  # as the command names it
    method: str
    images: str  # folder of the images; empty for uploads
    state: str = "new"  # new, waiting, running, stopped, failed or done
    message: str = ""  # what the user should read about the state
    created: float = 0.0
    chosen: str = ""  # the method that `auto` chose …
    choice: str = ""  # … and why


def folder_title(folder: Path | None) -> str:
    """Return what a site is called whose user gave no name: as its folder, or the folder above one named `images`."""
    if folder is None:
        return "New site"
    return (folder.parent if folder.name == "images" else folder).name or "New site"


class Changes:
    """Wakes the pages that wait for a change. Changes may be reported by any thread."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def report(self) -> None:
        """Wake all that wait."""
        with self._lock:
            self.count += 1
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            with suppress(RuntimeError):  # the loop of a server that ended
                loop.call_soon_threadsafe(event.set)

    async def after(self, count: int, seconds: float) -> None:
        """Wait until more than `count` changes were reported, but not longer than some seconds."""
        event = asyncio.Event()
        with self._lock:
            if self.count > count:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)


class SiteStore:
    """The folder of all sites. Every change is written at once, and then reported.

    A failure that cannot be written, for example to a full disk, is kept in memory until the next change is written.
    """

    def __init__(self, work: Path) -> None:
        self.sites, self.changes, self._lock = work / "sites", Changes(), threading.RLock()
        self._unwritten: dict[str, SiteRequest] = {}

    def create(self, title: str, model: str, method: str, images: str) -> SiteRequest:
        """Add a site in the state `new`."""
        title = " ".join(title.split())[:120]
        site = SiteRequest(secrets.token_hex(8), title, model, method, images, created=time.time())
        self._write(site)
        return site

    def get(self, identifier: str) -> SiteRequest:
        """Return a site; an unknown identifier raises a UserError."""
        if IDENTIFIER.fullmatch(identifier):
            kept = self._unwritten.get(identifier)
            if kept is not None and self.folder(identifier).is_dir():
                return kept
            with suppress(OSError, ValueError, TypeError):
                fields = json.loads((self.folder(identifier) / "site.json").read_text(encoding="utf-8"))
                return SiteRequest(**fields)
        raise UserError("there is no such site; it may have been deleted")

    def all(self) -> list[SiteRequest]:
        """Return all sites, the latest first."""
        return sorted(self._readable(), key=lambda site: (-site.created, site.id))

    def _readable(self) -> Iterator[SiteRequest]:
        for folder in self.sites.iterdir() if self.sites.is_dir() else ():
            with suppress(UserError):
                yield self.get(folder.name)

    def update(self, identifier: str, **changes: Any) -> SiteRequest:
        """Change fields of a site."""
        with self._lock:
            site = replace(self.get(identifier), **changes)
            self._write(site)
            return site

    def fail(self, identifier: str, reason: str) -> None:
        """Let a site be failed, also if that cannot be written."""
        with self._lock:
            site = replace(self.get(identifier), state="failed", message=reason)
            try:
                self._write(site)
            except OSError:
                self._unwritten[identifier] = site
                self.changes.report()

    def delete(self, identifier: str) -> None:
        """Delete a site with its uploads, masks and decisions. A named image folder is not touched."""
        with self._lock:
            shutil.rmtree(self.folder(self.get(identifier).id))
            self._unwritten.pop(identifier, None)
        self.changes.report()

    def folder(self, identifier: str) -> Path:
        """Return the folder of a site."""
        return self.sites / identifier

    def inputs(self, site: SiteRequest) -> Path:
        """Return the folder of a site's images."""
        return Path(site.images) if site.images else self.folder(site.id) / "images"

    def out(self, site: SiteRequest) -> Path:
        """Return the folder that `predict` writes."""
        return self.folder(site.id) / "out"

    def _write(self, site: SiteRequest) -> None:
        write_text(self.folder(site.id) / "site.json", json.dumps(asdict(site), indent=2) + "\n")
        self._unwritten.pop(site.id, None)
        self.changes.report()
