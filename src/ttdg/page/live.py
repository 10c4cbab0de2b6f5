"""What a network answers while it learns a site: contours of a few images, drawn again every few seconds."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from ttdg.adaptation import Exportable, build_adapter
from ttdg.adaptation.adapter import Adapter, Logits
from ttdg.checkpoints import Model
from ttdg.data.unlabelled import NewBatch, read_new_images
from ttdg.files import write_text
from ttdg.newsite.inputs import find_files
from ttdg.page.contours import draw_outlines, image_key, write_previews

LIVE = "learning.json"  # of a site's folder: the latest contours
COUNT = 4  # images that are watched
PAUSE, SHARE = (
    1.0,
    0.1,
)  # seconds between two drawings, at least; and the share of the time that they may take


class LearningView:
    """Watches the network of a method that learns a whole site. It changes neither the network nor its answers.

    Args:
        folder: The folder of the site.
        model: The source model.
        images: The folder of the images.
        most_pixels: Images with more pixels are not shown.
    """

    def __init__(self, folder: Path, model: Model, images: Path, most_pixels: int) -> None:
        self.folder, self.model, self.images, self.most_pixels = folder, model, images, most_pixels
        self.step = 0  # of the latest drawing
        self._network: torch.nn.Module | None = None
        self._batch: NewBatch | None = None
        self._next, self._source = 0.0, torch.empty(0)

    def begin(self, adapter: Adapter) -> None:
        """Take the adapter before it learns; one that learns no network of its own is not watched."""
        self._network = adapter.learned_network() if isinstance(adapter, Exportable) else None

    @torch.no_grad()
    def draw(self, step: int, steps: int) -> None:
        """Draw the present answers of the network, unless they were drawn a moment ago."""
        start = time.monotonic()
        if self._network is None or start < self._next:
            return
        if self._batch is None:
            self._batch = self._read()
            if self._batch is None:  # no readable image
                self._network = None
                return
            for image in self._batch.files:
                write_previews(self.folder / "shown", image)
            self._source = build_adapter(self.model, "source", {})(self._batch.images)
        self._write(self._batch, self._network(self._batch.images), step, steps)
        spent = time.monotonic() - start
        self.step, self._next = step, time.monotonic() + max(PAUSE, spent / SHARE)

    def _read(self) -> NewBatch | None:
        """Read images evenly spaced over the folder."""
        files = find_files([self.images], self.folder / "out").images
        picked = [files[i * len(files) // COUNT] for i in range(COUNT)] if len(files) > COUNT else files
        batches = read_new_images(
            [picked], self.model.card.benchmark, len(picked), next(self.model.network.parameters()).device,
            pictures=True, most_pixels=self.most_pixels, on_error=lambda _: None,
        )  # fmt: skip
        return next((batch for batch in batches if not batch.unusual), None)

    def _write(self, batch: NewBatch, adapted: Logits, step: int, steps: int) -> None:
        drawn = [
            {"key": image_key(image.file), "file": image.file.encode(errors="replace").decode()}
            | draw_outlines(image, before, after, self.model.card.benchmark)
            for image, before, after in zip(batch.files, self._source, adapted, strict=True)
        ]
        write_text(self.folder / LIVE, json.dumps({"step": step, "steps": steps, "images": drawn}))


def read_live(folder: Path) -> dict[str, Any] | None:
    """Return the latest contours of a site that is being learned, or None."""
    try:
        found = json.loads((folder / LIVE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return dict(found)
