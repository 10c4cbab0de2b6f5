"""Two controls of labels carried through the universe: nearest neighbours, and matching to single images.

Both keep a bank of cells of sure images, and use the same features, labels and certainties as the universe.

- `NeighbourCarrier`: every cell takes the mean label of its nearest cells in a random sample of all sure cells.
- `PairwiseCarrier`: every image is matched softly to a few sure images, one at a time, and takes the mean of the labels
  that they carry. Correspondences between three images need not agree.

While the bank is empty, cells take the labels of the source's universe points.
"""

from abc import abstractmethod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ttdg.adaptation.universe.carried_labels import carry, source_points
from ttdg.adaptation.universe.carriers import Carrier, CellLabels, SiteCells, UniverseCarrier
from ttdg.adaptation.universe.source_reading import Features
from ttdg.prior import MorphologyPrior

BANK = 8192  # cells of sure images that a site keeps for nearest neighbours
NEIGHBOURS = 16  # nearest cells whose labels are averaged
BLOCK = 4096  # cells compared with the bank at once
REFERENCES = 16  # sure images that a site keeps for pairwise matching
PARTNERS = 4  # references that an image is matched to
GRID = 32  # rows and columns of the grid on which pairs of images are matched

CarrierName = Literal["universe", "neighbours", "pairwise"]


def make_carrier(name: CarrierName, prior: MorphologyPrior, seed: int) -> Carrier:
    """The carrier of this name, on the device of the prior; `seed` is that of its random sample."""
    if name == "neighbours":
        return NeighbourCarrier(prior, seed)
    return PairwiseCarrier(prior) if name == "pairwise" else UniverseCarrier(prior)


class CellBank:
    """A bounded number of rows: features, labels and a weight each. A free row has weight 0."""

    def __init__(self, rows: int, features: tuple[int, ...], labels: tuple[int, ...], like: Tensor) -> None:
        self.features, self.labels = like.new_zeros(rows, *features), like.new_zeros(rows, *labels)
        self.weights, self.keys = like.new_zeros(rows), like.new_full((rows,), -1.0)

    def clear(self) -> None:
        """Free all rows."""
        for value in (self.features, self.labels, self.weights):
            value.zero_()
        self.keys.fill_(-1.0)

    def add(self, keys: Float[Tensor, " n"], *new: Tensor) -> None:
        """Keep the rows with the largest keys, among the present and the new features, labels and weights."""
        own = (self.features, self.labels, self.weights)
        keys = torch.where(new[2] > 0, keys, -1.0)
        self.keys, chosen = torch.cat([self.keys, keys]).topk(len(self.keys))
        for present, added in zip(own, new, strict=True):
            present.copy_(torch.cat([present, added])[chosen])

    def tensors(self) -> dict[str, Tensor]:
        """The rows by name."""
        return {"bank.features": self.features, "bank.labels": self.labels, "bank.weights": self.weights}


class BankCarrier(Carrier):
    """A carrier that keeps rows of sure images in a bank."""

    def __init__(self, prior: MorphologyPrior, bank: CellBank) -> None:
        self.tau, self.source, self.bank = prior.spec.tau, source_points(prior), bank

    def carry(self, features: Features) -> CellLabels:
        """Labels from the bank; without sure images those of the source's universe points."""
        labels = self._from_bank(features)
        return torch.where((self.bank.weights > 0).any(), labels, carry(self.source, features, self.tau))

    @abstractmethod
    def _from_bank(self, features: Features) -> CellLabels:
        """Labels that the cells take from the bank."""

    def reset(self) -> None:
        """Free the bank."""
        self.bank.clear()

    def tensors(self) -> dict[str, Tensor]:
        """The bank."""
        return self.bank.tensors()


class NeighbourCarrier(BankCarrier):
    """Every cell takes the weighted mean label of its nearest cells in a random sample of the sure cells."""

    def __init__(self, prior: MorphologyPrior, seed: int) -> None:
        width, labels = (prior.spec.node_dim,), (prior.spec.labels,)
        super().__init__(prior, CellBank(BANK, width, labels, prior.universe.detach()))
        self.seed = seed

    @torch.no_grad()
    def refresh(self, site: SiteCells) -> None:
        """Sample cells of the sure images, each with the same probability."""
        self.bank.clear()
        generator = torch.Generator().manual_seed(self.seed)
        for batch in site():
            rows, labels = (x.movedim(1, -1).flatten(0, 2) for x in (batch.features, batch.labels))
            weights = batch.certainty.repeat_interleave(len(rows) // len(batch.certainty))
            keys = torch.rand(len(rows), generator=generator)
            self.bank.add(keys.to(rows.device), rows, labels, weights.to(labels))

    def _from_bank(self, features: Features) -> CellLabels:
        b, _, y, x = features.shape
        cells = features.movedim(1, -1).flatten(0, 2)
        labels = torch.cat([self._nearest(block) for block in cells.split(BLOCK)])
        return labels.unflatten(0, (b, y, x)).movedim(-1, 1)

    def _nearest(self, cells: Float[Tensor, "n h"]) -> Float[Tensor, "n l"]:
        similarity = (cells @ self.bank.features.T).masked_fill_(self.bank.weights <= 0, -torch.inf)
        near = similarity.topk(NEIGHBOURS, dim=1).indices
        return _weighted_mean(self.bank.labels[near], self.bank.weights[near])


class PairwiseCarrier(BankCarrier):
    """Every image is matched to its most similar references, which are the surest images of the site."""

    def __init__(self, prior: MorphologyPrior) -> None:
        cells, spec = GRID * GRID, prior.spec
        like = prior.universe.detach()
        super().__init__(prior, CellBank(REFERENCES, (cells, spec.node_dim), (cells, spec.labels), like))

    @torch.no_grad()
    def refresh(self, site: SiteCells) -> None:
        """Keep the surest images, on a coarse grid."""
        self.bank.clear()
        for batch in site():
            labels, weights = _coarse(batch.labels), batch.certainty.to(batch.labels)
            self.bank.add(weights, F.normalize(_coarse(batch.features), dim=2), labels, weights)

    def _from_bank(self, features: Features) -> CellLabels:
        cells = F.normalize(_coarse(features), dim=2)
        partners = self._partners(cells)
        X = torch.einsum("bnh,bpmh->bpnm", cells, self.bank.features[partners]).div_(self.tau).softmax(3)
        carried = _weighted_mean(X @ self.bank.labels[partners], self.bank.weights[partners])
        small = carried.movedim(1, -1).unflatten(2, (GRID, GRID))
        return F.interpolate(small, size=features.shape[2:], mode="bilinear")

    def _partners(self, cells: Float[Tensor, "b n h"]) -> Tensor:
        """Rows of the references whose mean feature is the most similar to that of each image."""
        one, other = (F.normalize(x.mean(1), dim=1) for x in (cells, self.bank.features))
        return (one @ other.T).masked_fill_(self.bank.weights <= 0, -torch.inf).topk(PARTNERS, dim=1).indices


def _coarse(cells: Float[Tensor, "b c y x"]) -> Float[Tensor, "b n c"]:
    """Means of the cells of a coarse grid."""
    return F.adaptive_avg_pool2d(cells, GRID).flatten(2).movedim(1, -1)


def _weighted_mean(
    values: Float[Tensor, "b k *rest"], weights: Float[Tensor, "b k"]
) -> Float[Tensor, "b *rest"]:
    """Mean over the second dimension; zeros where all weights are 0."""
    shares = weights / weights.sum(1, keepdim=True).clamp(min=1e-12)
    return torch.einsum("bk...,bk->b...", values, shares)
