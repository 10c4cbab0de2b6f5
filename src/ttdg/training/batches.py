"""Source images in memory, and the training batches drawn from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ttdg.data import AUGMENTATIONS, Arrays, Normalisation, augment, balanced_indices, draw, normalise
from ttdg.data.augmentation import draw_fourier
from ttdg.data.sampling import gather_cases
from ttdg.data.shifts import apply_photometric, draw_photometric
from ttdg.data.transforms import exchange_amplitude
from ttdg.errors import UserError
from ttdg.training.mixstyle import draw_styles
from ttdg.training.recipe import Recipe

ON_DEVICE = 16 * 2**30  # largest total size, in bytes, of uint8 images kept on a GPU


class Pool:
    """The training images of all source sites, as uint8 tensors in memory or memory-mapped.

    On a GPU the images are copied to the device once if they fit. Batches are then gathered on a separate CUDA stream,
    so that preparing a batch does not wait for the previous training step.
    """

    def __init__(self, sites: Sequence[Arrays], device: torch.device) -> None:
        self.sites = [(site.images, site.masks) for site in sites if site.masks is not None]
        self.sizes = [len(site.cases) for site in sites]
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if len(self.sites) < len(sites) or not all(self.sizes):
            raise UserError(
                "a source site has no images, or has images without masks; "
                "check the benchmark, and train on sites whose images all have masks"
            )
        if device.type == "cuda" and sum(images.numel() for images, _ in self.sites) <= ON_DEVICE:
            self.sites = [(images.to(device), masks.to(device)) for images, masks in self.sites]

    def batch(self, recipe: Recipe, how: Normalisation, step: int, part: slice) -> tuple[Tensor, ...]:
        """Return the rows `part` of the global batch of `step`: augmented, normalised images and their labels.

        With MixStyle, the weights and partners of `draw_styles` follow.

        The result depends only on the recipe and the step. A resumed run, or a run on more processes, therefore
        trains on the same images with the same augmentation.
        """
        if self.stream is None:
            return self._drawn(recipe, how, step, part)
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            batch = self._drawn(recipe, how, step, part)
        current.wait_stream(self.stream)
        for tensor in batch:
            tensor.record_stream(current)
        return batch

    def _drawn(self, recipe: Recipe, how: Normalisation, step: int, part: slice) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        site, index = balanced_indices(self.sizes, recipe.batch, generator, power=recipe.balance)
        site, order = site.sort(stable=True)
        parameters = draw(AUGMENTATIONS[recipe.augmentation], recipe.batch, generator)[part]
        if recipe.fourier or recipe.photometric:
            # The partners of this process's images may be in the part of another process: gather the whole batch.
            fourier = draw_fourier(site, recipe.fourier, generator)[part]
            photometric = draw_photometric(recipe.batch, recipe.photometric, generator)[part]
            whole, masks = gather_cases(self.sites, site, index[order], self.device)
            images = whole[part].float() / 255
            if recipe.fourier:
                images = exchange_amplitude(images, _rows(whole, fourier.partner), fourier)
            images, masks = augment(images, masks[part], parameters)
            if recipe.photometric:
                images = apply_photometric(images, _rows(whole, photometric.partner), photometric)
        else:
            images, masks = gather_cases(self.sites, site[part], index[order][part], self.device)
            images, masks = augment(images.float() / 255, masks, parameters)
        styles = [x[part].to(self.device) for x in draw_styles(recipe, step)] if recipe.mixstyle else []
        return normalise(images, how), masks.long(), *styles


def _rows(images: Tensor, rows: Tensor) -> Tensor:
    return images[rows.to(images.device)].float() / 255
