"""Correspondences between the nodes of different images, and measures of their quality.

Matches are indices: `matches[i, j, k]` is the node of image j that corresponds to node k of image i, or `UNMATCHED`.
All functions are pure functions of tensors on the CPU.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

UNMATCHED = -1


def matches_through_universe(points: Int[Tensor, "m n"], size: int) -> Int[Tensor, "m m n"]:
    """Match nodes that are assigned to the same universe point.

    Args:
        points: the universe point of each node, or `UNMATCHED`; no image uses a point twice.
        size: number of universe points.
    """
    m, n = points.shape
    slot = torch.where(points == UNMATCHED, size, points)
    owner = points.new_full((m, size + 1), UNMATCHED).scatter(1, slot, torch.arange(n).expand(m, n))
    owner[:, size] = UNMATCHED
    return _without_self_matches(owner[:, slot].transpose(0, 1))


def nearest_neighbour_matches(
    features: Float[Tensor, "m n h"], mask: Bool[Tensor, "m n"]
) -> Int[Tensor, "m m n"]:
    """Match each node to the node of the other image with the largest inner product.

    Images are processed one by one to save memory.
    """
    rows = [
        torch.einsum("nh,jlh->jnl", own, features).masked_fill(~mask[:, None], -torch.inf).max(2)
        for own in features
    ]
    values, index = torch.stack([row.values for row in rows]), torch.stack([row.indices for row in rows])
    return _without_self_matches(torch.where((values > -torch.inf) & mask[:, None], index, UNMATCHED))


def label_agreement(matches: Int[Tensor, "m m n"], labels: Int[Tensor, "m n"]) -> float:
    """Share of matched pairs with equal labels; NaN without matches."""
    matched = matches != UNMATCHED
    agree = (_of_partner(labels, matches) == labels[:, None])[matched]
    return float(agree.double().mean()) if agree.numel() else float("nan")


def chance_agreement(labels: Int[Tensor, "m n"]) -> float:
    """Share of equal labels among all pairs of nodes of different images; label 0 is padding."""
    count = torch.nn.functional.one_hot(labels)[..., 1:].sum(1).double()
    pairs = count.sum(0).outer(count.sum(0)) - count.T @ count
    return float(pairs.trace() / pairs.sum())


def cycle_violations(matches: Int[Tensor, "m m n"]) -> float:
    """Share of paths i → j → k over three images that end at another node than i → k; NaN without paths."""
    m, violations, paths = len(matches), 0, 0
    different = ~torch.eye(m, dtype=torch.bool)
    for j in range(m):
        first = matches[:, j, None].expand_as(matches)  # i → j, for every k
        second = matches[j][None].expand_as(matches).gather(2, first.clamp(min=0))
        exists = (first != UNMATCHED) & (second != UNMATCHED) & different[:, :, None]
        violations += int((exists & (second != matches)).sum())
        paths += int(exists.sum())
    return violations / paths if paths else float("nan")


def perplexity(points: Int[Tensor, "m n"], size: int) -> float:
    """Effective number of universe points in use: exp of the entropy of their shares, at most `size`."""
    counts = points[points != UNMATCHED].bincount(minlength=size).double()
    share = counts / counts.sum().clamp(min=1)
    return float(torch.special.entr(share).sum().exp())


def structure_coordinates(
    coordinates: Float[Tensor, "m n 2"], inside: Bool[Tensor, "m h w"]
) -> Float[Tensor, "m n 2"]:
    """Coordinates (y, x) relative to the structure's centre, in units of the square root of its area.

    Args:
        coordinates: positions of nodes in [0, 1].
        inside: mask of the structure in each image.
    """
    h, w = inside.shape[1:]
    weight = inside.to(coordinates)
    total = weight.sum((1, 2)).clamp(min=1)
    y = (weight.sum(2) * (torch.arange(h) + 0.5) / h).sum(1) / total
    x = (weight.sum(1) * (torch.arange(w) + 0.5) / w).sum(1) / total
    return (coordinates - torch.stack([y, x], 1)[:, None]) / (total / (h * w)).sqrt()[:, None, None]


def relative_distance(
    matches: Int[Tensor, "m m n"],
    labels: Int[Tensor, "m n"],
    coordinates: Float[Tensor, "m n 2"],
    image_pairs: Bool[Tensor, "m m"],
) -> float:
    """Mean distance of matched nodes of one label, divided by that of random nodes of the same label.

    0 means the same position in every structure, 1 no correspondence; NaN without matches.

    Args:
        matches: matches between images.
        labels: labels of the nodes; label 0 is ignored.
        coordinates: positions of the nodes, as `structure_coordinates` returns them.
        image_pairs: pairs of images that count.
    """
    valid = (matches != UNMATCHED) & image_pairs[:, :, None] & (labels > 0)[:, None]
    valid &= _of_partner(labels, matches) == labels[:, None]
    partner = coordinates[torch.arange(len(coordinates))[None, :, None], matches.clamp(min=0)]
    distance = (partner - coordinates[:, None]).norm(dim=3)
    random = _random_distance_by_label(labels, coordinates, image_pairs)
    expected = random[labels[:, None].expand_as(matches)[valid]]
    return float(distance[valid].mean() / expected.mean()) if valid.any() else float("nan")


def _random_distance_by_label(
    labels: Tensor, coordinates: Tensor, image_pairs: Tensor
) -> Float[Tensor, " c"]:
    """Mean distance of all pairs of nodes of one label in different images."""
    one_hot = torch.nn.functional.one_hot(labels).to(coordinates)
    total, pairs = coordinates.new_zeros(2, one_hot.shape[2]).unbind(0)
    for i, others in enumerate(image_pairs):
        others = others & (torch.arange(len(image_pairs)) != i)
        distance = torch.cdist(coordinates[i], coordinates[others])
        total = total + torch.einsum("nc,jnl,jlc->c", one_hot[i], distance, one_hot[others])
        pairs = pairs + one_hot[i].sum(0) * one_hot[others].sum((0, 1))
    return total / pairs.clamp(min=1)


def _of_partner(labels: Tensor, matches: Tensor) -> Int[Tensor, "m m n"]:
    """The label of each node's partner; undefined where unmatched."""
    return labels[torch.arange(len(labels))[None, :, None], matches.clamp(min=0)]


def _without_self_matches(matches: Tensor) -> Tensor:
    """Matches of an image to itself set to `UNMATCHED`."""
    same_image = torch.eye(len(matches), dtype=torch.bool)[:, :, None]
    return matches.masked_fill(same_image, UNMATCHED)
