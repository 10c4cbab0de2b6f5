"""The part of TASD-R: a dictionary of shapes, and a head that predicts the shape in an image."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor

from ttdg.data import Arrays
from ttdg.networks.heads.shapes import GRID, ShapeHead, centred_shapes, learn_dictionary, sparse_code
from ttdg.networks.losses import dice_cross_entropy, one_hot, soft_dice
from ttdg.training.parts.fitting import PartFit
from ttdg.types import Part

ATOMS = 32  # atoms of the dictionary, per structure
MAX_SHAPES = 2000  # masks, per structure, from which the dictionary is learnt


def fit_tasd_r(job: PartFit) -> Part:
    """Learn the dictionary, then train the head.

    The loss is the segmentation loss + w‖â − a*‖₁ + ½ Dice loss of the shape prior, where w is one over the number of
    coefficients. With w = 1 the head predicted coefficients near 0, the median of sparse codes, and its shape priors
    stayed almost empty (trials on the demo's sites).
    """
    structures = len(job.benchmark.labels) - 1
    head = ShapeHead(job.channels()[-1], structures + 1, structures, ATOMS).to(job.device)
    for number in range(structures):
        shapes = source_shapes(job.sources, number + 1, job.seed).to(job.device)
        if len(shapes):
            generator = torch.Generator().manual_seed(job.seed)
            head.atoms[number] = learn_dictionary(shapes, ATOMS, generator)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = job.network.encode(images)
            logits = job.network.decode(features)
            masks = one_hot(logits, labels)[:, 1:]
            true_codes, true_centres = shape_targets(masks, head.atoms)
        codes, centres = head.codes(features[-1])
        prior = head.prior(codes, centres, (images.shape[-2], images.shape[-1]))
        dice = (1 - soft_dice(prior, masks)).mean()
        supervised = dice_cross_entropy(head.corrected(logits, prior), labels)
        return (
            supervised
            + (codes - true_codes).abs().mean()
            + (centres - true_centres).abs().mean()
            + 0.5 * dice
        )

    job.fit(head, loss)
    return head.to_part("softmax")


def source_shapes(sources: Mapping[str, Arrays], label: int, seed: int) -> Float[Tensor, "m p"]:
    """Return shapes of one structure, flattened, from at most `MAX_SHAPES` random source masks of all sites.

    The shape of a mask is its largest connected component. Masks without the structure are left out.
    """
    masks = [site.masks for site in sources.values() if site.masks is not None]
    site = torch.cat([torch.full((len(m),), s) for s, m in enumerate(masks)])
    row = torch.cat([torch.arange(len(m)) for m in masks])
    order = torch.randperm(len(row), generator=torch.Generator().manual_seed(seed))[:MAX_SHAPES]
    components = []
    for s, r in zip(site[order].tolist(), row[order].tolist(), strict=True):
        mask = (masks[s][r] == label).float()[None, None]
        if mask.any():
            components.append(largest_component(mask))
    if not components:
        return torch.zeros(0, GRID * GRID)
    return centred_shapes(torch.cat(components))[0].flatten(1)


def shape_targets(
    masks: Float[Tensor, "b n h w"], atoms: Float[Tensor, "n k p"]
) -> tuple[Float[Tensor, "b n k"], Float[Tensor, "b n 2"]]:
    """Return the head's targets: sparse codes and centres of the largest component of each mask."""
    shapes, centres = centred_shapes(largest_component(masks))
    codes = [sparse_code(shapes[:, number].flatten(1), atoms[number]) for number in range(len(atoms))]
    return torch.stack(codes, 1), centres


def largest_component(masks: Float[Tensor, "b n h w"]) -> Float[Tensor, "b n g g"]:
    """Return the largest connected component of each mask, resampled to the grid of shapes."""
    coarse = F.interpolate(masks, (GRID, GRID), mode="area")
    kept = [_largest(mask) for mask in coarse.flatten(0, 1).cpu().numpy() > 0.25]
    return coarse * torch.from_numpy(np.stack(kept)).view(coarse.shape).to(coarse.device)


def _largest(mask: Bool[np.ndarray, "g g"]) -> Bool[np.ndarray, "g g"]:
    """Pixels to keep: the largest component, or everything if there are fewer than two components."""
    components, count = ndimage.label(mask)
    if count < 2:
        return np.ones_like(mask)  # coverage below the threshold may stay
    kept: Bool[np.ndarray, "g g"] = components == np.bincount(components.ravel())[1:].argmax() + 1
    return kept
