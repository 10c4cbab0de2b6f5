"""Which node of one image goes with which of another, and what that is worth: pure functions on tensors.

Matches are indices: [i, j, k] is the node of image j that node k of image i goes with, or NONE.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NONE = -1


def through_points(points: Int[Tensor, "m n"], size: int) -> Int[Tensor, "m m n"]:
    """Nodes go together that went to the same of `size` universe points, which no image uses twice."""
    m, n = points.shape
    slot = torch.where(points == NONE, size, points)
    owner = points.new_full((m, size + 1), NONE).scatter(1, slot, torch.arange(n).expand(m, n))
    owner[:, size] = NONE
    return _between_images(owner[:, slot].transpose(0, 1))


def nearest(features: Float[Tensor, "m n h"], mask: Bool[Tensor, "m n"]) -> Int[Tensor, "m m n"]:
    """Each node goes with the other image's most similar one, by inner product. Image by image, to spare memory."""
    rows = [
        torch.einsum("nh,jlh->jnl", own, features).masked_fill(~mask[:, None], -torch.inf).max(2)
        for own in features
    ]
    values, index = torch.stack([row.values for row in rows]), torch.stack([row.indices for row in rows])
    return _between_images(torch.where((values > -torch.inf) & mask[:, None], index, NONE))


def label_agreement(matches: Int[Tensor, "m m n"], labels: Int[Tensor, "m n"]) -> float:
    """Share of matched pairs whose labels are the same."""
    matched = matches != NONE
    return _mean((_of_partner(labels, matches) == labels[:, None])[matched])


def chance_agreement(labels: Int[Tensor, "m n"]) -> float:
    """The same for any two nodes of different images; label 0 is padding."""
    count = torch.nn.functional.one_hot(labels)[..., 1:].sum(1).double()
    pairs = count.sum(0).outer(count.sum(0)) - count.T @ count
    return float(pairs.trace() / pairs.sum())


def cycle_violations(matches: Int[Tensor, "m m n"]) -> float:
    """Of all ways i → j → k over three images, the share that ends elsewhere than i → k does."""
    m, wrong, ways = len(matches), 0, 0
    apart = ~torch.eye(m, dtype=torch.bool)
    for j in range(m):
        first = matches[:, j, None].expand_as(matches)  # i → j, for every k
        onward = matches[j][None].expand_as(matches).gather(2, first.clamp(min=0))
        there = (first != NONE) & (onward != NONE) & apart[:, :, None]
        wrong += int((there & (onward != matches)).sum())
        ways += int(there.sum())
    return wrong / ways if ways else float("nan")


def perplexity(points: Int[Tensor, "m n"], size: int) -> float:
    """How many universe points are in use: e to the entropy of their shares; `size` if all are used alike."""
    used = points[points != NONE].bincount(minlength=size).double()
    share = used / used.sum().clamp(min=1)
    return float(torch.special.entr(share).sum().exp())


def in_structure(
    coordinates: Float[Tensor, "m n 2"], inside: Bool[Tensor, "m h w"]
) -> Float[Tensor, "m n 2"]:
    """Coordinates in [0, 1] seen from the structure: from its centre, in units of the square root of its area."""
    h, w = inside.shape[1:]
    weight = inside.to(coordinates)
    total = weight.sum((1, 2)).clamp(min=1)
    y = (weight.sum(2) * (torch.arange(h) + 0.5) / h).sum(1) / total
    x = (weight.sum(1) * (torch.arange(w) + 0.5) / w).sum(1) / total
    return (coordinates - torch.stack([y, x], 1)[:, None]) / (total / (h * w)).sqrt()[:, None, None]


def relative_distance(
    matches: Int[Tensor, "m m n"],
    labels: Int[Tensor, "m n"],
    places: Float[Tensor, "m n 2"],
    among: Bool[Tensor, "m m"],
) -> float:
    """Mean distance of matched nodes of one label over that of any two of the same label: 1 is no correspondence.

    Label 0 does not count; `among` says which pairs of images do.
    """
    here = (matches != NONE) & among[:, :, None] & (labels > 0)[:, None]
    here &= _of_partner(labels, matches) == labels[:, None]
    partner = places[torch.arange(len(places))[None, :, None], matches.clamp(min=0)]
    apart = (partner - places[:, None]).norm(dim=3)
    any_two = _by_label(labels, places, among)
    expected = any_two[labels[:, None].expand_as(matches)[here]]
    return float(apart[here].mean() / expected.mean()) if here.any() else float("nan")


def _by_label(labels: Tensor, places: Tensor, among: Tensor) -> Float[Tensor, " c"]:
    """Mean distance of any two nodes of one label in different images."""
    hot = torch.nn.functional.one_hot(labels).to(places)
    total, pairs = places.new_zeros(2, hot.shape[2]).unbind(0)
    for i, others in enumerate(among):
        others = others & (torch.arange(len(among)) != i)
        distance = torch.cdist(places[i], places[others])
        total = total + torch.einsum("nc,jnl,jlc->c", hot[i], distance, hot[others])
        pairs = pairs + hot[i].sum(0) * hot[others].sum((0, 1))
    return total / pairs.clamp(min=1)


def _of_partner(labels: Tensor, matches: Tensor) -> Int[Tensor, "m m n"]:
    return labels[torch.arange(len(labels))[None, :, None], matches.clamp(min=0)]


def _between_images(matches: Tensor) -> Tensor:
    own = torch.eye(len(matches), dtype=torch.bool)[:, :, None]
    return matches.masked_fill(own, NONE)


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else float("nan")
