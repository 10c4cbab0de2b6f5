"""How far the images of a folder are from the source sites of the model, and which of them are of another kind."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ttdg.checkpoints import Model
from ttdg.data.loading import Arrays, to_batch
from ttdg.data.unlabelled import InputFile, NewImage, Refused, read_new_images
from ttdg.safety import Drift, Fingerprint, SourceShadow, measure_drift

SAMPLE = 64  # images that are described, spread over the folder
LEAST = 4  # images that are described; fewer say little about a site
BATCH = 16


@dataclass(frozen=True)
class SampledSite:
    """What a sample of the images of a folder says of all of them."""

    drift: Drift | None  # None if the model has no fingerprint, or if there are too few images
    learnable: int  # images that are not empty, noise or of another kind; estimated from the sample


def check_site(
    model: Model, images: Sequence[InputFile], *, most_pixels: int, workers: int | None = None
) -> SampledSite:
    """Measure the drift of at most `SAMPLE` images of a folder.

    Constant frames, noise and files that cannot be read do not count. If most of the other images are each of another
    kind than those of the source, so is the folder. Without a fingerprint nothing is read, and all images count.
    """
    if "fingerprint" not in model.parts or len(images) < LEAST:
        return SampledSite(None, len(images))
    fingerprint, shadow = _fingerprint_and_shadow(model)
    device = next(model.network.parameters()).device
    rows = torch.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().long().tolist()
    unread: deque[Refused] = deque(maxlen=0)
    batches = read_new_images(
        [[images[row] for row in rows]], model.card.benchmark, BATCH, device, pictures=False,
        most_pixels=most_pixels, workers=workers, on_error=unread.append,
    )  # fmt: skip
    described = [shadow(batch.images)[1] for batch in batches if not batch.unusual]
    foreign = [kind for part in described for kind in fingerprint.is_foreign(part).tolist()]
    learnable = round(len(images) * foreign.count(False) / len(rows))
    if len(foreign) < LEAST:
        return SampledSite(None, learnable)
    drift = measure_drift(fingerprint, map(fingerprint.embed, described), foreign=sum(foreign))
    return SampledSite(drift, learnable)


class SourceKind:
    """Tells images that are not of the source's kind, each by itself. Without a fingerprint no image is.

    The verdict about a file is kept, because a folder is read several times.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._known = model, dict[tuple[str, str], bool]()
        self._fitted = _fingerprint_and_shadow(model) if "fingerprint" in model.parts else None

    def __call__(self, image: NewImage) -> bool:
        """Return whether an image is not of the source's kind."""
        if self._fitted is None:
            return False
        if (key := (image.file, image.sha256)) not in self._known:
            fingerprint, shadow = self._fitted
            arrays = Arrays(torch.from_numpy(image.network_input)[None], None, (image.file,))
            device = next(self._model.network.parameters()).device
            batch = to_batch(arrays, self._model.card.benchmark.normalisation, device)
            self._known[key] = bool(fingerprint.is_foreign(shadow(batch.images)[1])[0])
        return self._known[key]


def _fingerprint_and_shadow(model: Model) -> tuple[Fingerprint, SourceShadow]:
    fingerprint = Fingerprint.from_part(model.parts["fingerprint"])
    return fingerprint, SourceShadow(model.network, fingerprint.layers)
