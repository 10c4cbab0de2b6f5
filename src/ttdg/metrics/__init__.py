"""Dice, E_φ^max, S_α, HD95 and ASSD per image and region, batched, on the device of the tensors.

Every image counts. A missed structure scores 0 (for a surface distance: the image's diagonal). A structure that is
absent from both truth and prediction gets the best score.

Regions:

- `region_masks`, `region_probabilities`: labels or logits → one mask or probability map per region

Scores of a batch:

- `score`, `score_regions`, `Scores`: Dice, E_φ curves and S_α from logits and labels, or from maps
- `aggregate`, `Means`: means over all images of all batches
- `dice`: Dice at threshold ½
- `alignment_curve`: E_φ at 256 thresholds
- `max_alignment`: E_φ^max of a set of images
- `structure`: S_α

Surface distances, in pixels or physical units:

- `surface_scores`, `SurfaceScores`: all of the following from one computation
- `hd95`: larger of the two directed 95th percentiles (as MONAI)
- `hd95_pooled`: 95th percentile of both directions together (as medpy)
- `assd`: average symmetric surface distance

Whole volumes:

- `volume_dice`: Dice over all voxels of a volume
- `volume_surface_scores`: surface distances in three dimensions, in voxels or millimetres

Classifications:

- `accuracy`: 1 for each image whose class is right, else 0
- `image_classes`: the class of each image

`ttdg.metrics.published_variants` holds the E and S of other papers, for comparison with their tables only.
"""

from ttdg.metrics.alignment import alignment_curve, max_alignment
from ttdg.metrics.classes import accuracy, image_classes
from ttdg.metrics.overlap import dice
from ttdg.metrics.regions import region_masks, region_probabilities
from ttdg.metrics.scores import Means, Scores, aggregate, score, score_regions
from ttdg.metrics.structure import structure
from ttdg.metrics.surface import SurfaceScores, assd, hd95, hd95_pooled, surface_scores
from ttdg.metrics.volume import volume_dice, volume_surface_scores

__all__ = [
    "Means",
    "Scores",
    "SurfaceScores",
    "accuracy",
    "aggregate",
    "alignment_curve",
    "assd",
    "dice",
    "hd95",
    "hd95_pooled",
    "image_classes",
    "max_alignment",
    "region_masks",
    "region_probabilities",
    "score",
    "score_regions",
    "structure",
    "surface_scores",
    "volume_dice",
    "volume_surface_scores",
]
