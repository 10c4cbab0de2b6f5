"""How far a site is from the source sites: distances, a two-sample test and a verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ttdg.safety.fingerprint import Fingerprint

DriftClass = Literal["like home", "shifted", "far", "not this kind of image"]
CLASSES: tuple[DriftClass, ...] = ("like home", "shifted", "far", "not this kind of image")
DRAWS = 500  # batches of source images, and permutations
HOME = 0.98  # share of batches of held-out source images that are like home
MOST = 32  # images of those batches, at most; more would compare the sampling of the references
RARE = 0.01  # p-value of the two-sample test below which a site is not like home, however near it is
TESTED = 128  # images of each sample of the two-sample test, at most
NO_FINGERPRINT = (
    "The model has no fingerprint of its source sites, so the distance of these images is unknown."
)


@dataclass(frozen=True)
class Drift:
    """The distance of a site. Distances are 0 at home and about 1 at a simulated hospital."""

    verdict: DriftClass
    distance: float
    home_limit: float  # limits of the verdicts, for this number of images
    far_limit: float
    foreign_limit: float
    by_group: Mapping[str, float]  # distance by layer, in the order of the network
    nearest: str  # source site
    p_value: float  # of the two-sample test against held-out images of the nearest site
    images: int
    foreign_images: int  # those that are each not of the source's kind

    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        text = (
            f"The site is {_WORDS[self.verdict]}: distance {self.distance:.2f} from {self.nearest} over {self.images} "
            f"images (0 is a source site, 1 a typical simulated hospital; like home up to {self.home_limit:.2f}); "
            f"two-sample test p = {self.p_value:.3f}."
        )
        other = f" {self.foreign_images} of these images are of another kind than those of the source."
        return text + other if self.foreign_images else text

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "verdict": self.verdict, "distance": round(self.distance, 4), "nearest": self.nearest,
            "limits": {
                "like home": round(self.home_limit, 4), "shifted": round(self.far_limit, 4),
                "far": round(self.foreign_limit, 4),
            },
            "by_layer": {name: round(value, 4) for name, value in self.by_group.items()},
            "p_value": round(self.p_value, 4), "images": self.images, "foreign_images": self.foreign_images,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Drift":
        """Return the drift of `to_dict`; a missing field raises a KeyError, except for the latest, `foreign_images`."""
        limits = values["limits"]
        return cls(
            values["verdict"], values["distance"], limits["like home"], limits["shifted"], limits["far"],
            values["by_layer"], values["nearest"], values["p_value"], values["images"],
            values.get("foreign_images", 0),
        )  # fmt: skip


_WORDS: Mapping[DriftClass, str] = {
    "like home": "like a source site",
    "shifted": "shifted",
    "far": "far from all source sites",
    "not this kind of image": "not of the kind of image that the model was trained on",
}


def measure_drift(
    fingerprint: Fingerprint,
    embeddings: Iterable[Float[Tensor, "_n g w"]],
    seed: int = 0,
    foreign: int | None = None,
) -> Drift | None:
    """Return the drift of the embedded images of a site; None without images.

    A site of which most images are not of the source's kind is not of that kind, however near the mean of all is.

    Args:
        fingerprint: The statistics of the source sites.
        embeddings: The images, in batches.
        seed: Seed of the random draws.
        foreign: Number of images that are not of the source's kind (`Fingerprint.is_foreign`); None counts those that
            are too far from all source sites.
    """
    parts = list(embeddings)
    if not sum(map(len, parts)):
        return None
    E = torch.cat(parts).float()
    generator = Generator().manual_seed(seed)
    count = len(E)
    by_group, nearest = fingerprint.by_group(E.mean(0), count)
    distance = float(by_group.mean())
    home = home_limit(fingerprint, count, generator)
    far, beyond = max(fingerprint.far, home), max(fingerprint.foreign, home)
    limits = torch.tensor([home, far, beyond])
    if foreign is None:
        foreign = int((fingerprint.overall(E, 1) > fingerprint.foreign_image).sum())
    p_value = two_sample_test(E, fingerprint.references[fingerprint.owner == nearest], generator)
    passed = max(int((distance > limits).sum()), int(p_value < RARE))
    if foreign > count / 2:
        passed = len(limits)
    return Drift(
        CLASSES[passed], distance, home, far, beyond,
        dict(zip(fingerprint.groups, by_group.tolist(), strict=True)), fingerprint.sites[int(nearest)],
        p_value, count, foreign,
    )  # fmt: skip


def home_limit(fingerprint: Fingerprint, images: int, generator: Generator) -> float:
    """Return the distance that `HOME` of the batches of held-out source images stay below.

    Each batch has `images` images of one site, drawn with replacement.
    """
    size, distances = min(images, MOST), list[Tensor]()
    for site in range(len(fingerprint.sites)):
        mine = fingerprint.references[fingerprint.owner == site]
        rows = torch.randint(len(mine), (DRAWS // len(fingerprint.sites) + 1, size), generator=generator)
        weights = torch.zeros(len(rows), len(mine)).scatter_add_(1, rows, torch.full(rows.shape, 1 / size))
        distances.append(fingerprint.overall(torch.einsum("dr,rgw->dgw", weights, mine), size))
    return float(torch.cat(distances).quantile(HOME))


def two_sample_test(
    a: Float[Tensor, "n g w"], b: Float[Tensor, "m g w"], generator: Generator, draws: int = DRAWS
) -> float:
    """Return the p-value of a permutation test with the energy distance between two samples of images."""
    a, b = (x[torch.linspace(0, len(x) - 1, min(TESTED, len(x))).round().long()] for x in (a, b))
    n, m = len(a), len(b)
    if min(n, m) < 2:
        return 1.0
    both = torch.cat([a, b]).flatten(1)
    between = torch.cdist(both, both)
    order = torch.rand(draws, n + m, generator=generator).argsort(1)
    first = torch.zeros(draws + 1, n + m)
    first[0, :n] = 1
    first[1:].scatter_(1, order[:, :n], 1.0)
    second = 1 - first
    cross = torch.einsum("di,ij,dj->d", first, between, second) / (n * m)
    inside = torch.einsum("di,ij,dj->d", first, between, first) / n**2
    outside = torch.einsum("di,ij,dj->d", second, between, second) / m**2
    energy = 2 * cross - inside - outside
    return float((energy[1:] >= energy[0] - 1e-6).double().sum() + 1) / (draws + 1)
