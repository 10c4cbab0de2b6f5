"""The fingerprint of the source: how its sites look to the source network, to measure how far a new site is.

The description of an image (`ttdg.safety.descriptions`) is divided by the spread between images of one source site.
Long groups are reduced to `WIDTH` numbers by a signed hash of their channels. It preserves squared distances on average
and, unlike principal components, also those in directions in which the source does not vary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from ttdg.errors import UserError
from ttdg.safety.appearance import APPEARANCE
from ttdg.types import Part

WIDTH = 64  # numbers of each group after reduction
CLIP = 30.0  # largest deviation of a number, in units of the spread between source images
GREY, COLOUR = 0.004, 0.02  # largest difference between the colours of a grey image; least of a colour image
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
        """Return the embeddings of described images, on the CPU; raises `UserError` if it was fitted to others."""
        for name, group in self.groups.items():
            if name not in description or description[name].shape[1] != len(group.mean):
                raise UserError(
                    f"the fingerprint describes {name!r} otherwise than this network; fit the part 'fingerprint' again"
                )
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

    def is_foreign(self, description: Mapping[str, Float[Tensor, "n _f"]]) -> Bool[Tensor, " n"]:
        """Return which described images are not of the source's kind, on the CPU.

        They are farther from every site than simulated hospitals are, or grey although every source image is in colour,
        or in colour although every source image is grey.
        """
        embedded = self.embed(description)
        colour = _colourfulness(description[APPEARANCE].to(embedded.device))
        usual, other = (
            _colourfulness(self._reference_appearance()),
            torch.zeros_like(colour, dtype=torch.bool),
        )
        if usual.min() > COLOUR:
            other = colour < GREY
        elif usual.max() < GREY:
            other = colour > COLOUR
        return (self.overall(embedded, 1) > self.foreign_image) | other

    def _reference_appearance(self) -> Float[Tensor, "r f"]:
        """Return the numbers of the group `appearance`, which is too short to be reduced, of the references."""
        group, place = self.groups[APPEARANCE], list(self.groups).index(APPEARANCE)
        z = self.references[:, place].index_select(1, group.slot.long()) * group.sign * len(group.mean) ** 0.5
        return z * group.spread + group.mean

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
            found = cls(
                groups, settings["layers"], settings["sites"], tensors["centres"], tensors["references"].float(),
                tensors["owner"], tensors["scale"], settings["far"], settings["foreign"], settings["foreign_image"],
            )  # fmt: skip
            wrong = found._wrong()
        except KeyError as error:
            raise UserError(f"the fingerprint has no {error}; fit the part 'fingerprint' again") from None
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            wrong = repr(error)
        if wrong:
            raise UserError(f"the fingerprint is damaged ({wrong}); fit the part 'fingerprint' again")
        return found

    def _wrong(self) -> str:
        """Return which entries are of another kind or shape than `to_part` writes; empty if none is."""
        limits = (self.far, self.foreign, self.foreign_image)
        names = [*self.groups, *self.layers, *self.sites]
        sites, groups, images = len(self.sites), len(self.groups), len(self.references)
        shapes = {
            "centres": (self.centres, (sites, groups, WIDTH)), "references": (self.references, (images, groups, WIDTH)),
            "owner": (self.owner, (images,)), "scale": (self.scale, (groups,)),
        }  # fmt: skip
        if not all(type(limit) in (int, float) for limit in limits) or not all(
            isinstance(name, str) for name in names
        ):
            return "its limits are no numbers, or its names are no texts"
        if not all(len(set(map(tuple, sizes))) == 1 for sizes in map(_sizes, self.groups.values())):
            return "the tensors of a group have different lengths"
        if not all(bool(((group.slot >= 0) & (group.slot < WIDTH)).all()) for group in self.groups.values()):
            return "a slot is outside of its group"
        if APPEARANCE not in self.groups or not sites or not set(self.owner.tolist()) >= set(range(sites)):
            return "a site has no images, or there is no group of their appearance"
        wrong = [name for name, (tensor, shape) in shapes.items() if tuple(tensor.shape) != shape]
        return f"the shape of {wrong[0]}" if wrong else ""


def _colourfulness(appearance: Float[Tensor, "n f"]) -> Float[Tensor, " n"]:
    """Return how much the mean and the deviation differ between the three colours; 0 for a grey image."""
    three = torch.stack([appearance[:, :3], appearance[:, 3:6]], 1)
    return (three.amax(2) - three.amin(2)).amax(1)


def _sizes(group: Group) -> list[torch.Size]:
    return [group.mean.shape, group.spread.shape, group.slot.shape, group.sign.shape]


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
