"""Grad-CAM and matched graphs of a run's own models, on the first images of a scoring's first target."""

import numpy as np
import torch
from torch import Tensor

from ttdg.experiment.explain import draw_cams, draw_pairs, grad_cam, pairs
from ttdg.experiment.jobs import Job, Scoring
from ttdg.experiment.opened import Opened, open_job
from ttdg.experiment.pictures import batches
from ttdg.experiment.place import Place
from ttdg.prior import MorphologyPrior

LABEL = 1  # the first structure


def cams(jobs: dict[str, Job], place: Place, count: int) -> bytes:
    """Each method's network after it has met the target, looked into."""
    maps, shown = {}, None
    for method, job in jobs.items():
        opened = _opened(job, place)
        images = first_images(opened, count)
        for _ in opened.answers():
            pass
        maps[method] = grad_cam(opened.adapter.network, images, LABEL)
        shown = images
    assert shown is not None
    return draw_cams(as_pictures(shown), maps)


def matched(job: Job, place: Place) -> bytes | None:
    """Two images of the target, matched with the prior and without; nothing for a model that has none."""
    opened = _opened(job, place)
    if "prior" not in opened.model.parts:
        return None
    prior = MorphologyPrior.from_part(opened.model.parts["prior"]).to(opened.device)
    images, network = first_images(opened, 2), opened.model.network
    found = {
        "raw features": pairs(network, prior, images, with_prior=False),
        "through the universe": pairs(network, prior, images),
    }
    return draw_pairs(as_pictures(images), found)


def first_images(opened: Opened, count: int) -> Tensor:
    cases = next(iter(opened.orders.values()))[:count]
    batch = next(batches(cases, opened.benchmark, opened.job.sites, count, opened.device))
    return batch.images


def as_pictures(images: Tensor) -> list[np.ndarray]:
    """Between 0 and 1 whatever the normalisation."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    shown = (images - low) / torch.clamp(high - low, min=1e-6)
    return list(shown.movedim(1, -1).cpu().numpy())


def _opened(job: Job, place: Place) -> Opened:
    assert isinstance(job, Scoring)
    return open_job(job, place)
