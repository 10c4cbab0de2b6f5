"""How far the images of a folder are from the source sites of the model."""

from collections import deque
from collections.abc import Sequence

import torch

from ttdg.checkpoints import Model
from ttdg.data.unlabelled import InputFile, Refused, read_new_images
from ttdg.safety import Drift, Fingerprint, SourceShadow, measure_drift

SAMPLE = 64  # images that are described, spread over the folder
LEAST = 4  # images; fewer say little about a site
BATCH = 16


def check_site(
    model: Model, images: Sequence[InputFile], *, most_pixels: int, workers: int | None = None
) -> Drift | None:
    """Measure the drift of at most `SAMPLE` images of a folder.

    Constant frames, noise and files that cannot be read do not count.

    Returns:
        The drift; None if the model has no fingerprint, or if there are too few images.
    """
    if "fingerprint" not in model.parts or len(images) < LEAST:
        return None
    fingerprint = Fingerprint.from_part(model.parts["fingerprint"])
    shadow, device = (
        SourceShadow(model.network, fingerprint.layers),
        next(model.network.parameters()).device,
    )
    rows = torch.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().long().tolist()
    unread: deque[Refused] = deque(maxlen=0)
    batches = read_new_images(
        [[images[row] for row in rows]], model.card.benchmark, BATCH, device, pictures=False,
        most_pixels=most_pixels, workers=workers, on_error=unread.append,
    )  # fmt: skip
    return measure_drift(
        fingerprint, (fingerprint.embed(shadow(batch.images)[1]) for batch in batches if not batch.unusual)
    )
