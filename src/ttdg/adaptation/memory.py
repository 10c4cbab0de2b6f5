"""Bounded memories of a stream, searched by the cosine similarity of their entries.

All entries stay on the device, and Python knows the number of entries, so that the host never waits for the device.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Memory:
    """A first-in-first-out table of at most `capacity` rows; the first of its columns holds the keys."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.columns: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def push(self, *rows: Tensor) -> None:
        """Append rows (b, …) to each column and drop the oldest; rows of another shape clear the memory first."""
        if not self.fits(*rows):
            self.clear()
        old = self.columns or tuple(row[:0] for row in rows)
        self.columns = tuple(
            torch.cat([column, row.detach()])[-self.capacity :] for column, row in zip(old, rows, strict=True)
        )

    def fits(self, *rows: Tensor) -> bool:
        """True if the memory is not empty and its entries have the shape of these rows."""
        return len(self) > 0 and all(
            a.shape[1:] == b.shape[1:] for a, b in zip(self.columns, rows, strict=False)
        )

    def nearest(self, keys: Float[Tensor, "b *d"], k: int) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
        """Return cosines and row numbers of the `k` most similar stored keys, in descending order of the cosine."""
        return _nearest(keys, self.columns[0], k)

    def clear(self) -> None:
        """Remove all rows."""
        self.columns = ()


class Bank:
    """The `capacity` feature maps with the highest scores."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self.scores)

    def clear(self) -> None:
        """Remove all maps."""
        self.maps, self.scores = torch.empty(0), torch.empty(0)

    def push(self, maps: Float[Tensor, "b c y x"], scores: Float[Tensor, "b"]) -> None:
        """Add maps and keep the best `capacity`; maps of another shape replace the whole bank."""
        if self.fits(maps):
            maps, scores = torch.cat([self.maps, maps.detach()]), torch.cat([self.scores, scores.detach()])
        if len(scores) > self.capacity:
            scores, best = scores.topk(self.capacity)
            maps = maps[best]
        self.maps, self.scores = maps.detach(), scores.detach()

    def fits(self, maps: Float[Tensor, "b c y x"]) -> bool:
        """True if the bank is not empty and its maps have the shape of these maps."""
        return len(self) > 0 and self.maps.shape[1:] == maps.shape[1:]

    def nearest(
        self, maps: Float[Tensor, "b c y x"], k: int
    ) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k c y x"]]:
        """Return cosines and maps of the `k` most similar stored maps, or of all if there are fewer than `k`."""
        cosines, rows = _nearest(maps.detach(), self.maps, min(k, len(self)))
        return cosines, self.maps[rows]


def _nearest(
    queries: Float[Tensor, "b *d"], keys: Float[Tensor, "n *d"], k: int
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    cosines, rows = (F.normalize(queries.flatten(1), dim=1) @ F.normalize(keys.flatten(1), dim=1).T).topk(k)
    return cosines, rows
