"""Grad-CAM and matched graphs of a run's models, on the first images of a scoring's first target."""

import numpy as np
import torch
from torch import Tensor

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job, Scoring
from ttdg.bench.scoring_job import OpenScoring, open_scoring
from ttdg.data.image_cache import target_batches
from ttdg.prior import prior_from_part
from ttdg.report.figures.explanations import draw_cams, draw_pairs, grad_cam, matched_pairs

LABEL = 1  # label of the first structure


def draw_grad_cams(jobs: dict[str, Job], folder: RunFolder, count: int) -> bytes:
    """Draw the Grad-CAM of each method's network after it has adapted to the target."""
    maps, shown = {}, None
    for method, job in jobs.items():
        opened = _open(job, folder)
        images = first_images(opened, count)
        for _ in opened.answers():
            pass
        maps[method] = grad_cam(opened.adapter.network, images, LABEL)
        shown = images
    assert shown is not None
    return draw_cams(rescale_for_display(shown), maps)


def draw_matched_graphs(job: Job, folder: RunFolder) -> bytes | None:
    """Draw two target images matched with and without the prior; None if the model has no prior."""
    opened = _open(job, folder)
    if "prior" not in opened.model.parts:
        return None
    prior = prior_from_part(opened.model.parts["prior"]).to(opened.device)
    images, network = first_images(opened, 2), opened.model.network
    found = {
        "raw features": matched_pairs(network, prior, images, with_prior=False),
        "through the universe": matched_pairs(network, prior, images),
    }
    return draw_pairs(rescale_for_display(images), found)


def first_images(opened: OpenScoring, count: int) -> Tensor:
    """Return the first images of the first target."""
    cases = next(iter(opened.orders.values()))[:count]
    batch = next(target_batches(cases, opened.benchmark, opened.job.sites, count, opened.device))
    return batch.images


def rescale_for_display(images: Tensor) -> list[np.ndarray]:
    """Scale each image to [0, 1] and move the channels last."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    shown = (images - low) / torch.clamp(high - low, min=1e-6)
    return list(shown.movedim(1, -1).cpu().numpy())


def _open(job: Job, folder: RunFolder) -> OpenScoring:
    assert isinstance(job, Scoring)
    return open_scoring(job, folder)
