"""Grad-CAM and matched graphs of a run's own models, on the first images of a scoring's first target."""

import numpy as np
import torch
from torch import Tensor

from ttdg.bench.folder import RunFolder
from ttdg.bench.jobs import Job, Scoring
from ttdg.bench.scoring_job import OpenScoring, open_scoring
from ttdg.evaluation.images import target_batches
from ttdg.prior import MorphologyPrior
from ttdg.report.figures.explanations import draw_cams, draw_pairs, grad_cam, matched_pairs

LABEL = 1  # the first structure


def draw_grad_cams(jobs: dict[str, Job], place: RunFolder, count: int) -> bytes:
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


def draw_matched_graphs(job: Job, place: RunFolder) -> bytes | None:
    """Two images of the target, matched with the prior and without; nothing for a model that has none."""
    opened = _opened(job, place)
    if "prior" not in opened.model.parts:
        return None
    prior = MorphologyPrior.from_part(opened.model.parts["prior"]).to(opened.device)
    images, network = first_images(opened, 2), opened.model.network
    found = {
        "raw features": matched_pairs(network, prior, images, with_prior=False),
        "through the universe": matched_pairs(network, prior, images),
    }
    return draw_pairs(as_pictures(images), found)


def first_images(opened: OpenScoring, count: int) -> Tensor:
    cases = next(iter(opened.orders.values()))[:count]
    batch = next(target_batches(cases, opened.benchmark, opened.job.sites, count, opened.device))
    return batch.images


def as_pictures(images: Tensor) -> list[np.ndarray]:
    """Between 0 and 1 whatever the normalisation."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    shown = (images - low) / torch.clamp(high - low, min=1e-6)
    return list(shown.movedim(1, -1).cpu().numpy())


def _opened(job: Job, place: RunFolder) -> OpenScoring:
    assert isinstance(job, Scoring)
    return open_scoring(job, place)
