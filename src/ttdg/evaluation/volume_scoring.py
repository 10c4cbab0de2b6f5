"""Scores of volumes, from the answers to their slices.

A volume is scored when its last slice was answered. Its rows stand beside those of its slices, with the name of the
volume as case:

- `volume_dice`: over all voxels
- `volume_hd95_voxels`, `volume_assd_voxels`: every voxel of the network's input counts as a cube of side 1, whatever
  its true shape (the voxel convention of PASS, Zhang et al., TMI 2024)
- `volume_hd95_mm`, `volume_assd_mm`: in millimetres, where the spacing of all three axes is known
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from ttdg.data import Volume
from ttdg.evaluation.records import Row
from ttdg.evaluation.streams import TargetStream
from ttdg.metrics import volume_dice, volume_surface_scores
from ttdg.types import Regions

CUBES = (1.0, 1.0, 1.0)
Masks = tuple[Bool[Tensor, "r h w"], Bool[Tensor, "r h w"]]  # of one slice: prediction, truth


class VolumeScorer:
    """Collects the masks of slices in any order and scores each volume once all of its slices are there.

    The masks of a volume are released when it has been scored. A stream that comes volume by volume therefore needs
    memory for one volume.
    """

    def __init__(self, target: TargetStream, regions: Regions) -> None:
        self.name, self.regions = target.name, regions
        self.volume = {
            (volume.site, case): volume for volume in target.volumes for case in volume.slices
        }  # (site, case) of every slice → its volume
        self.waiting: dict[tuple[str, str], dict[str, Masks]] = {}

    def add(self, site: str, case: str, masks: Masks, *, surfaces: bool) -> list[Row]:
        """Keep the masks of a slice; return the rows of its volume if the slice was the last one missing."""
        volume = self.volume.get((site, case))
        if volume is None:
            return []
        slices = self.waiting.setdefault((site, volume.name), {})
        slices[case] = masks
        if len(slices) < len(volume.slices):
            return []
        del self.waiting[site, volume.name]
        prediction, truth = (
            torch.stack(part, dim=1) for part in zip(*(slices[name] for name in volume.slices), strict=True)
        )
        return [
            (self.name, site, volume.name, region, metric, value)
            for metric, values in _scores(volume, prediction, truth, surfaces).items()
            for region, value in zip(self.regions, values.tolist(), strict=True)
        ]


def _scores(volume: Volume, prediction: Tensor, truth: Tensor, surfaces: bool) -> dict[str, Tensor]:
    """Return metric → value of each region."""
    scores = {"volume_dice": volume_dice(prediction, truth)}
    if surfaces:
        for unit, spacing in (("voxels", CUBES), ("mm", volume.spacing)):
            if spacing is not None:
                distances = volume_surface_scores(prediction, truth, spacing)
                scores[f"volume_hd95_{unit}"] = distances.hd95[0]
                scores[f"volume_assd_{unit}"] = distances.assd[0]
    return scores
