"""Source images in memory, and the training batches drawn from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ttdg.data import AUGMENTATIONS, Arrays, Normalisation, augment, balanced_indices, draw, normalise
from ttdg.errors import UserError
from ttdg.training.recipe import Recipe

ON_DEVICE = 16 * 2**30  # bytes of uint8 images that may lie on a GPU


class Pool:
    """Sites as uint8 tensors, in memory or memory-mapped. On a GPU they are moved there once if they fit,
    and every later step is a gather, on a stream of its own: drawing a batch waits for what it sends there, but not
    for the training step before."""

    def __init__(self, sites: Sequence[Arrays], device: torch.device) -> None:
        self.images = [site.images for site in sites]
        self.masks = [site.masks for site in sites if site.masks is not None]
        self.sizes = [len(site.cases) for site in sites]
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if len(self.masks) < len(sites) or not all(self.sizes):
            raise UserError(
                "every source site needs images with masks; run `ttdg data check` on the benchmark"
            )
        if device.type == "cuda" and sum(images.numel() for images in self.images) <= ON_DEVICE:
            self.images = [images.to(device) for images in self.images]
            self.masks = [masks.to(device) for masks in self.masks]

    def gather(self, site: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images and masks of the drawn (site, index) pairs, grouped by site, on the device."""
        images, masks = [], []
        for s in range(len(self.sizes)):
            rows = index[site == s].to(self.images[s].device)
            images.append(self.images[s][rows].to(self.device))
            masks.append(self.masks[s][rows].to(self.device))
        return torch.cat(images), torch.cat(masks)

    def batch(self, recipe: Recipe, how: Normalisation, step: int, part: slice) -> tuple[Tensor, Tensor]:
        """This process's part of the global batch of `step`: a pure function of seed and step, so that a resumed
        run, or one on more processes, sees the same images with the same augmentation."""
        if self.stream is None:
            return self._drawn(recipe, how, step, part)
        here = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            batch = self._drawn(recipe, how, step, part)
        here.wait_stream(self.stream)
        for tensor in batch:
            tensor.record_stream(here)
        return batch

    def _drawn(self, recipe: Recipe, how: Normalisation, step: int, part: slice) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        site, index = balanced_indices(self.sizes, recipe.batch, generator, power=recipe.balance)
        site, order = site.sort(stable=True)
        parameters = draw(AUGMENTATIONS[recipe.augmentation], recipe.batch, generator)[part]
        images, masks = self.gather(site[part], index[order][part])
        images, masks = augment(images.float() / 255, masks, parameters)
        return normalise(images, how), masks.long()
