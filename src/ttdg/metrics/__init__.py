"""Dice, E_φ^max, S_α, HD95 and ASSD of images × regions, batched on the tensors' device.

Every image counts: a missed structure scores 0 (a surface distance: the image's diagonal), and a structure
absent from truth and prediction alike scores best.
"""

from ttdg.metrics.alignment import alignment_curve, max_alignment
from ttdg.metrics.overlap import dice
from ttdg.metrics.regions import region_masks, region_probabilities
from ttdg.metrics.scores import Means, Scores, aggregate, score, score_regions
from ttdg.metrics.structure import structure
from ttdg.metrics.surface import SurfaceScores, assd, hd95, hd95_pooled, surface_scores

__all__ = [
    "Means",
    "Scores",
    "SurfaceScores",
    "aggregate",
    "alignment_curve",
    "assd",
    "dice",
    "hd95",
    "hd95_pooled",
    "max_alignment",
    "region_masks",
    "region_probabilities",
    "score",
    "score_regions",
    "structure",
    "surface_scores",
]
