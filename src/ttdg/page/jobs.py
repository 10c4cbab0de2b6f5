"""The thread that segments sites: one after the other, by `ttdg.newsite.predict`."""

import json
import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ttdg.adaptation import build_adapter
from ttdg.adaptation.adapter import Logits
from ttdg.checkpoints import Model
from ttdg.data.unlabelled import NewBatch
from ttdg.errors import UserError
from ttdg.files import write_text
from ttdg.newsite import predict
from ttdg.newsite.auto import MethodChoice
from ttdg.page.contours import show_batch
from ttdg.page.findings import DRIFT
from ttdg.page.live import LearningView
from ttdg.page.settings import PageSettings
from ttdg.page.sites import OPEN, SiteRequest, SiteStore
from ttdg.safety import Drift

UNWRITTEN = (
    "the state of this site cannot be written ({}); free space on the disk, or allow writing to the work folder, then "
    "continue"
)


class Stopped(Exception):
    """A user stopped the run."""


@dataclass
class SiteProgress:
    """Counts of a run since the server started."""

    done: int = 0
    total: int = 0
    learned: int = 0  # steps
    steps: int = 0
    watched: int = 0  # the step whose contours were drawn last


class SiteWorker:
    """A queue of sites and the thread that processes them.

    Args:
        settings: Limits and the device.
        store: The sites.
        model: Returns a loaded model by its name.
    """

    def __init__(self, settings: PageSettings, store: SiteStore, model: Callable[[str], Model]) -> None:
        self.settings, self.store, self.model = settings, store, model
        self._queue: queue.Queue[str] = queue.Queue()
        self._progress: dict[str, SiteProgress] = {}
        self._stopping: set[str] = set()

    def start(self) -> None:
        """Start the thread. Sites that a killed server left unfinished come first."""
        for site in reversed(self.store.all()):
            if site.state in OPEN:
                self.submit(site.id)
        threading.Thread(target=self._work, name="sites", daemon=True).start()

    def submit(self, identifier: str) -> None:
        """Put a site into the queue."""
        self._stopping.discard(identifier)
        if self._record(identifier, state="waiting", message=""):
            self._queue.put(identifier)

    def stop(self, identifier: str) -> None:
        """Stop a site after its present batch or step; finished answers stay."""
        self._stopping.add(identifier)
        if self.store.get(identifier).state == "waiting":
            self._record(identifier, state="stopped")

    def progress(self, identifier: str) -> SiteProgress:
        """Return the counts of a site."""
        return self._progress.get(identifier, SiteProgress())

    def _work(self) -> None:
        while True:
            identifier = self._queue.get()
            with suppress(UserError):  # the site was deleted
                if self.store.get(identifier).state == "waiting" and self._record(
                    identifier, state="running"
                ):
                    self._segment(self.store.get(identifier))

    def _record(self, identifier: str, **changes: Any) -> bool:
        """Change fields of a site. A site whose state cannot be written is failed; return whether it was written."""
        try:
            self.store.update(identifier, **changes)
        except OSError as error:
            self.store.fail(identifier, UNWRITTEN.format(error.strerror or error))
            return False
        return True

    def _segment(self, site: SiteRequest) -> None:
        state, message = "done", ""
        try:
            message = self._predict(site)
        except Stopped:
            state = "stopped"
        except (UserError, OSError) as error:
            state, message = "failed", str(error)
        except Exception:  # noqa: BLE001  # the thread must survive, and the user must learn of it
            with suppress(OSError):
                write_text(self.store.folder(site.id) / "error.txt", traceback.format_exc())
            state, message = (
                "failed",
                "an error of the program; its details are in error.txt of the site's folder",
            )
        if state == "failed":
            self.store.fail(site.id, message)
        else:
            self._record(site.id, state=state, message=message)

    def _predict(self, site: SiteRequest) -> str:
        """Segment the images of a site and return the remarks of the method."""
        model, folder = self.model(site.model), self.store.folder(site.id)
        counts = self._progress[site.id] = SiteProgress()
        source, inputs = build_adapter(model, "source", {}), self.store.inputs(site)
        live = LearningView(folder, model, inputs, self.settings.most_pixels)

        def check() -> None:
            self.store.changes.report()
            if site.id in self._stopping:
                raise Stopped

        def progress(done: int, total: int) -> None:
            counts.done, counts.total = done, total
            check()

        def learning(done: int, total: int) -> None:
            live.draw(done, total)
            counts.learned, counts.steps, counts.watched = done, total, live.step
            check()

        def answered(batch: NewBatch, logits: Logits) -> None:
            show_batch(folder / "shown", batch, source(batch.images), logits, model.card.benchmark)

        def chosen(choice: MethodChoice, drift: Drift | None) -> None:
            if choice.reason and not site.chosen:  # a continued site keeps its first reason
                self.store.update(site.id, chosen=choice.method, choice=choice.reason)
            if drift is not None:
                write_text(folder / DRIFT, json.dumps(drift.to_dict()))

        result = predict(
            model, inputs, self.store.out(site), method=site.method, most_pixels=self.settings.most_pixels,
            progress=progress, learning=learning, answered=answered, chosen=chosen, prepared=live.begin,
        )  # fmt: skip
        return " ".join(result.remarks)
