"""The matching of some images of a site: nodes, universe points, and where each node lands in the other images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ttdg.adaptation import METHODS, required_parts
from ttdg.checkpoints import Model
from ttdg.data import Arrays, to_batch
from ttdg.data.unlabelled import InputFile, read_new_images
from ttdg.errors import UserError
from ttdg.matching import round_matching
from ttdg.networks import feature_maps
from ttdg.page.contours import region_paths
from ttdg.prior import GraphPrior, Nodes, prior_from_part
from ttdg.prior.correspondence import (
    UNMATCHED,
    cycle_violations,
    label_agreement,
    matches_through_universe,
    nearest_neighbour_matches,
)
from ttdg.report.figures.carried import CARRIED, CarriedSite, carry_over_site
from ttdg.report.figures.explanations import features_at

MOST = 8  # images of one view


def read_images(model: Model, files: Sequence[InputFile], most_pixels: int) -> Arrays:
    """Read images at the size of the network; an unreadable file raises a UserError."""
    refused: list[str] = []
    batches = read_new_images(
        [files], model.card.benchmark, len(files), torch.device("cpu"), pictures=False, most_pixels=most_pixels,
        on_error=lambda found: refused.append(found.reason),
    )  # fmt: skip
    read = {image.file: image.network_input for batch in batches for image in batch.files}
    if refused:
        raise UserError(refused[0])
    names = [image.file for image in files]
    return Arrays(torch.from_numpy(np.stack([read[name] for name in names])), None, tuple(names))


def carried_labels(model: Model, images: Arrays) -> dict[str, list[dict[str, Any]]]:
    """Return what the sure images carry to the others, through the universe and by the nearest features alone.

    The first is what `universe` does before its first step, the second its control. Without the parts of `universe`
    there is nothing.
    """
    if any(name not in model.parts for name in METHODS["universe"].parts):
        return {}
    carriers = {"prior": {}, "features": {"carrier": "neighbours"}}
    return {
        way: _carried(model, carry_over_site(model, images, options)) for way, options in carriers.items()
    }


def _carried(model: Model, site: CarriedSite) -> list[dict[str, Any]]:
    return [
        {
            "contours": region_paths(labels.to(torch.uint8).numpy(), model.card.benchmark),
            "expected": round(float(expected), 3),
            "sure": not bool(unsure),
        }
        for labels, expected, unsure in zip(site.labels[CARRIED], site.expected, site.unsure, strict=True)
    ]


@torch.no_grad()
def match_images(model: Model, arrays: Arrays) -> dict[str, Any]:
    """Match the nodes of images, through the universe and by the network's features alone.

    Tissues are predicted by the network. They colour the comparison and do not guide the matching.

    Returns:
        For each image its nodes and contours; for each way of matching, the partner of every node in every other image,
        the share of pairs of one tissue, and the share of paths over three images that do not close.
    """
    device = next(model.network.parameters()).device
    images = to_batch(arrays, model.card.benchmark.normalisation, device).images
    (part,) = required_parts("matching", ("prior",), model.parts)
    prior = prior_from_part(part).to(images.device).eval()
    logits, maps = feature_maps(model.network, images)
    predicted = logits.argmax(1)
    nodes = prior.nodes(prior.project(maps, images.shape[2:]), predicted)
    points = universe_points(prior, nodes)
    raw, mask = features_at(maps, nodes.coordinates).cpu(), nodes.mask.cpu()
    tissues = torch.where(mask, nodes.labels.cpu(), 0)
    ways = {
        "prior": matches_through_universe(points, len(prior.universe)),
        "features": nearest_neighbour_matches(raw, mask),
    }
    return {
        "images": [
            {
                "nodes": _nodes(nodes.coordinates[i].cpu(), tissues[i], points[i]),
                "contours": region_paths(predicted[i].cpu().to(torch.uint8).numpy(), model.card.benchmark),
            }
            for i in range(len(images))
        ],
        "side": images.shape[-1],
        "tissues": list(model.card.benchmark.labels),
        "ways": {name: _way(matches, tissues) for name, matches in ways.items()},
    }


def universe_points(prior: GraphPrior, nodes: Nodes) -> Int[Tensor, "m n"]:
    """Return the universe point of each node in the best one-to-one matching of its image, on the CPU."""
    U = round_matching(prior.scores_of_all(nodes), nodes.mask).cpu()
    return torch.where(U.sum(2) > 0, U.argmax(2), UNMATCHED)


def _nodes(
    coordinates: Float[Tensor, "n 2"], tissues: Int[Tensor, "n"], points: Int[Tensor, "n"]
) -> list[dict[str, Any]]:
    """Return the nodes of an image; padding keeps its place in the list, without a position."""
    return [
        {"x": round(x, 4), "y": round(y, 4), "tissue": tissue, "point": point} if tissue else {}
        for (y, x), tissue, point in zip(coordinates.tolist(), tissues.tolist(), points.tolist(), strict=True)
    ]


def _way(matches: Int[Tensor, "m m n"], tissues: Int[Tensor, "m n"]) -> dict[str, Any]:
    agreement, broken = label_agreement(matches, tissues), cycle_violations(matches)
    return {
        "matches": matches.tolist(),
        "same_tissue": agreement if agreement == agreement else None,
        "broken_cycles": broken if broken == broken else None,
    }
