"""A bank of the deepest maps of the images a model was surest of: the worst gives way to a better one.

Nothing waits for the device: what is kept is decided there.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Maps = Float[Tensor, "b c y x"]


class Bank:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self.scores)

    def clear(self) -> None:
        self.maps, self.scores = torch.empty(0), torch.empty(0)

    def push(self, maps: Maps, scores: Float[Tensor, "b"]) -> None:
        """Keep the best of what there was and these; maps of another size begin a new bank."""
        if len(self) and self.fits(maps):
            maps, scores = torch.cat([self.maps, maps.detach()]), torch.cat([self.scores, scores.detach()])
        if len(scores) > self.capacity:
            scores, best = scores.topk(self.capacity)
            maps = maps[best]
        self.maps, self.scores = maps.detach(), scores.detach()

    def fits(self, maps: Maps) -> bool:
        return len(self) > 0 and self.maps.shape[1:] == maps.shape[1:]

    def nearest(self, maps: Maps, k: int) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k c y x"]]:
        """The `k` stored maps most like each (all, if there are fewer), with their cosines."""
        likeness = F.normalize(maps.detach().flatten(1), dim=1) @ F.normalize(self.maps.flatten(1), dim=1).T
        cosines, rows = likeness.topk(min(k, len(self)))
        return cosines, self.maps[rows]
