"""A short memory of a stream: rows first in, first out, found again by the likeness of their keys.

Everything stays on the device and every size is known to Python, so nothing waits for the device.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Memory:
    """Up to `capacity` rows in a few columns, such as (key, value); the first column is the key."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.columns: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def push(self, *rows: Tensor) -> None:
        """Append rows (b, …) to each column; the oldest leave. Rows of another shape begin a new memory."""
        if not self.fits(*rows):
            self.clear()
        old = self.columns or tuple(row[:0] for row in rows)
        self.columns = tuple(
            torch.cat([column, row.detach()])[-self.capacity :] for column, row in zip(old, rows, strict=True)
        )

    def fits(self, *rows: Tensor) -> bool:
        """Is there something, and shaped like these?"""
        return len(self) > 0 and all(
            a.shape[1:] == b.shape[1:] for a, b in zip(self.columns, rows, strict=False)
        )

    def nearest(self, keys: Float[Tensor, "b *d"], k: int) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
        """Cosine and row of the `k` stored keys most like each key, most like first."""
        likeness = F.normalize(keys.flatten(1), dim=1) @ F.normalize(self.columns[0].flatten(1), dim=1).T
        cosine, rows = likeness.topk(k)
        return cosine, rows

    def clear(self) -> None:
        self.columns = ()


class Bank:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self.scores)

    def clear(self) -> None:
        self.maps, self.scores = torch.empty(0), torch.empty(0)

    def push(self, maps: Float[Tensor, "b c y x"], scores: Float[Tensor, "b"]) -> None:
        """Keep the best of what there was and these; maps of another size begin a new bank."""
        if len(self) and self.fits(maps):
            maps, scores = torch.cat([self.maps, maps.detach()]), torch.cat([self.scores, scores.detach()])
        if len(scores) > self.capacity:
            scores, best = scores.topk(self.capacity)
            maps = maps[best]
        self.maps, self.scores = maps.detach(), scores.detach()

    def fits(self, maps: Float[Tensor, "b c y x"]) -> bool:
        return len(self) > 0 and self.maps.shape[1:] == maps.shape[1:]

    def nearest(
        self, maps: Float[Tensor, "b c y x"], k: int
    ) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k c y x"]]:
        """The `k` stored maps most like each (all, if there are fewer), with their cosines."""
        likeness = F.normalize(maps.detach().flatten(1), dim=1) @ F.normalize(self.maps.flatten(1), dim=1).T
        cosines, rows = likeness.topk(min(k, len(self)))
        return cosines, self.maps[rows]
