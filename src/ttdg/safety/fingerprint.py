"""The fingerprint of the source: how its sites look to the source network, to measure how far a new site is.

The description of an image (`ttdg.safety.descriptions`) is divided by the spread between images of one source site.
Long groups are reduced to `WIDTH` numbers by a signed hash of their channels. It preserves squared distances on average
and, unlike principal components, also those in directions in which the source does not vary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from ttdg.errors import UserError
from ttdg.types import Part

WIDTH = 64  # numbers of each group after reduction
CLIP = 30.0  # largest deviation of a number, in units of the spread between source images
LEAST_SPREAD = 0.05  # of a channel, as a share of the median channel of its group

Embedding = Float[Tensor, "n g w"]  # per image and group


@dataclass(frozen=True)
class Group:
    """How the description of one group is standardised and reduced."""

    mean: Float[Tensor, " f"]
    spread: Float[Tensor, " f"]
    slot: Integer[Tensor, " f"]
    sign: Float[Tensor, " f"]

    def embed(self, values: Float[Tensor, "n f"]) -> Float[Tensor, "n w"]:
        """Return standardised and reduced values, such that their squares sum to about 1 for source images."""
        z = ((values - self.mean) / self.spread).clamp(-CLIP, CLIP) * self.sign / len(self.mean) ** 0.5
        return z.new_zeros(len(z), WIDTH).index_add_(1, self.slot.long(), z)


@dataclass(frozen=True)
class Fingerprint:
    """Statistics of the source sites.

    Attributes:
        groups: By name, in the order of the network's depth.
        layers: Names of the layers that are described.
        sites: Names of the source sites.
        centres: Mean embedding of each site.
        references: Embeddings of held-out images, all sites together.
        owner: Index of the site of each reference.
        scale: Squared distance of a typical simulated hospital, by group.
        far: Overall distance beyond which a site is farther than nearly all simulated hospitals.
        foreign: Overall distance beyond which images are not of the source's kind.
        foreign_image: The same for a single image.
    """

    groups: Mapping[str, Group]
    layers: Sequence[str]
    sites: Sequence[str]
    centres: Float[Tensor, "s g w"]
    references: Float[Tensor, "r g w"]
    owner: Int[Tensor, " r"]
    scale: Float[Tensor, " g"]
    far: float
    foreign: float
    foreign_image: float

    def embed(self, description: Mapping[str, Float[Tensor, "n _f"]]) -> Float[Tensor, "n g w"]:
        """Return the embeddings of described images, on the CPU."""
        device = self.centres.device
        return torch.stack(
            [group.embed(description[name].to(device)) for name, group in self.groups.items()], 1
        )

    def squared(self, mean: Float[Tensor, "*n g w"], images: int) -> Float[Tensor, "*n s g"]:
        """Squared distance of mean embeddings of `images` images from each source site, by group.

        The expected distance of images of the site itself is subtracted, so that the value may be below 0.
        """
        return (mean.unsqueeze(-3) - self.centres).square().sum(-1) - 1 / images

    def by_group(self, mean: Float[Tensor, "*n g w"], images: int) -> tuple[Tensor, Tensor]:
        """Return the distances from the nearest site (…, g), as shares of a simulated hospital's, and its index."""
        share = (self.squared(mean, images) / self.scale).clamp(min=0).sqrt()
        nearest = share.mean(-1).argmin(-1)
        index = nearest[..., None, None].expand(*nearest.shape, 1, share.shape[-1])
        return share.gather(-2, index).squeeze(-2), nearest

    def overall(self, mean: Float[Tensor, "*n g w"], images: int) -> Float[Tensor, "*n"]:
        """Return the distance of mean embeddings over all groups: 0 at home, about 1 at a simulated hospital."""
        return self.by_group(mean, images)[0].mean(-1)

    def to_part(self) -> Part:
        """Return the part `fingerprint`."""
        tensors = {"centres": self.centres, "references": self.references.half(), "owner": self.owner}
        tensors["scale"] = self.scale
        for number, group in enumerate(self.groups.values()):
            columns = {"mean": group.mean, "spread": group.spread, "slot": group.slot, "sign": group.sign}
            tensors |= {f"{number}.{name}": value for name, value in columns.items()}
        settings = {
            "groups": list(self.groups), "layers": list(self.layers), "sites": list(self.sites), "far": self.far,
            "foreign": self.foreign, "foreign_image": self.foreign_image,
        }  # fmt: skip
        return Part({name: value.cpu() for name, value in tensors.items()}, settings)

    @classmethod
    def from_part(cls, part: Part) -> "Fingerprint":
        """Read the part `fingerprint`."""
        tensors, settings = part.tensors, part.settings
        try:
            groups = {
                name: Group(*(tensors[f"{number}.{column}"] for column in ("mean", "spread", "slot", "sign")))
                for number, name in enumerate(settings["groups"])
            }
            return cls(
                groups, settings["layers"], settings["sites"], tensors["centres"], tensors["references"].float(),
                tensors["owner"], tensors["scale"], settings["far"], settings["foreign"], settings["foreign_image"],
            )  # fmt: skip
        except KeyError as error:
            raise UserError(f"the fingerprint has no {error}; fit the part 'fingerprint' again") from None


def make_group(values: Float[Tensor, "n f"], site: Int[Tensor, " n"], generator: torch.Generator) -> Group:
    """Return the statistics of a group from descriptions of source images and the site of each."""
    centred = torch.cat([values[site == s] - values[site == s].mean(0) for s in site.unique()])
    spread = centred.square().mean(0).sqrt()
    spread = spread.clamp(min=max(1e-6, LEAST_SPREAD * float(spread.median())))
    channels = values.shape[1]
    if channels <= WIDTH:
        slot, sign = torch.arange(channels), torch.ones(channels)
    else:
        slot = torch.randint(WIDTH, (channels,), generator=generator)
        sign = torch.randint(2, (channels,), generator=generator) * 2.0 - 1
    return Group(values.mean(0), spread, slot.to(torch.uint8), sign)
