"""Augmentation: images and masks stay aligned, and results do not depend on the batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from ttdg.data import AUGMENTATIONS, Augmentation, augment, draw
from ttdg.data.transforms import blur

SIDE = 33


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(n: int, seed: int) -> torch.Tensor:
    """Masks of three labels with curved borders."""
    noise = torch.randn(n, 3, SIDE, SIDE, generator=generator(seed))
    return blur(noise, torch.full((n,), 2.0)).argmax(1).to(torch.uint8)


def one_hot(masks: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(masks.long(), 3).movedim(-1, 1).float()


def geometry(**changes: object) -> Augmentation:
    return Augmentation(**({"brightness": 0.0, "contrast": 0.0} | changes))


# --- geometry


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    flip=st.booleans(),
    rotation=st.floats(0, 180),
    scale=st.tuples(st.floats(0.4, 1.0), st.floats(1.0, 2.5)),
    shift=st.floats(0, 0.5),
)
def test_image_and_mask_stay_aligned(seed: int, flip: bool, rotation: float, scale, shift: float):
    """The image is the one-hot mask. Bilinear interpolation gives the nearest of four pixels a weight of at least ¼,
    so the channel of the resampled label must be at least ¼ everywhere."""
    masks = blobs(4, seed)
    strengths = geometry(flip=flip, rotation=rotation, scale=scale, shift=shift)
    images, moved = augment(one_hot(masks), masks, draw(strengths, 4, generator(seed)))
    assert images.gather(1, moved.long()[:, None]).min() >= 0.25 - 1e-3


def test_labels_and_types_are_kept():
    for dtype in (torch.uint8, torch.int64):
        masks = blobs(4, 0).to(dtype)
        _, moved = augment(one_hot(masks), masks, draw(Augmentation(), 4, generator()))
        assert moved.dtype == dtype
        assert not torch.equal(moved, masks)
        assert set(moved.unique().tolist()) <= {0, 1, 2}


def test_images_may_come_without_masks():
    images, masks = augment(one_hot(blobs(2, 0)), None, draw(Augmentation(), 2, generator()))
    assert masks is None
    assert images.shape == (2, 3, SIDE, SIDE)


def test_no_augmentation_changes_nothing():
    masks = blobs(3, 1)
    images = torch.rand(3, 3, SIDE, SIDE, generator=generator())
    same, same_masks = augment(images, masks, draw(Augmentation.none(), 3, generator()))
    assert torch.equal(same, images)
    assert torch.equal(same_masks, masks)


def test_flips_are_exact_and_all_four_occur():
    masks = blobs(1, 2).expand(64, -1, -1)
    strengths = geometry(rotation=0.0, scale=(1.0, 1.0), shift=0.0)
    _, moved = augment(one_hot(masks), masks, draw(strengths, 64, generator()))
    flipped = [masks[0].flip(dims) for dims in ((), (0,), (1,), (0, 1))]
    seen = [sum(torch.equal(mask, kind) for mask in moved) for kind in flipped]
    assert sum(seen) == 64
    assert min(seen) > 4


@pytest.mark.parametrize("degrees", [90.0, -90.0])
def test_a_quarter_turn_is_the_turn_of_numpy(degrees: float):
    masks = blobs(1, 3)
    strengths = geometry(flip=False, rotation=abs(degrees), scale=(1.0, 1.0), shift=0.0)
    parameters = draw(strengths, 400, generator())
    wanted = torch.tensor([[math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]])
    nearest = (parameters.affine[:, 0, :2] - wanted).norm(dim=1).argmin().item()
    turned, _ = augment(one_hot(masks), masks, parameters[nearest : nearest + 1])
    expected = np.rot90(one_hot(masks).numpy(), -np.sign(degrees), axes=(2, 3))  # positive is clockwise
    assert np.abs(turned.numpy() - expected).mean() < 0.05


def test_scale_and_shift_have_the_documented_effect():
    """The area of a central disc grows with the square of the scale; its centre follows the shift."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 101), torch.linspace(-1, 1, 101), indexing="ij")
    masks = (y**2 + x**2 < 0.09).to(torch.uint8).expand(50, -1, -1)
    images = torch.zeros(50, 3, 101, 101)
    _, larger = augment(images, masks, draw(geometry(scale=(1.5, 1.5), shift=0.0), 50, generator()))
    ratio = larger.sum((1, 2)) / masks.sum((1, 2))
    np.testing.assert_allclose(ratio, 2.25, rtol=0.03)
    strengths = geometry(scale=(1.0, 1.0), shift=0.15)
    _, moved = augment(images, masks, draw(strengths, 50, generator()))
    centres = torch.tensor([ndimage.center_of_mass(mask.numpy()) for mask in moved]) / 101 - 0.5
    assert centres.abs().max() <= 0.15 + 0.01
    assert centres.abs().max(dim=0).values.min() > 0.12


# --- colour


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_images_stay_within_black_and_white(name: str):
    images = torch.rand(8, 3, SIDE, SIDE, generator=generator())
    changed, _ = augment(images, None, draw(AUGMENTATIONS[name], 8, generator()))
    assert changed.isfinite().all()
    assert changed.min() >= 0
    assert changed.max() <= 1


def test_colour_leaves_masks_alone():
    strong = AUGMENTATIONS["strong"]
    still = Augmentation(
        **{name: getattr(strong, name) for name in strong.__dataclass_fields__}
        | {"flip": False, "rotation": 0.0, "scale": (1.0, 1.0), "shift": 0.0}
    )
    masks = blobs(4, 4)
    images = torch.rand(4, 3, SIDE, SIDE, generator=generator())
    changed, same = augment(images, masks, draw(still, 4, generator()))
    assert torch.equal(same, masks)
    assert (changed - images).abs().mean() > 0.01


def only(**strengths: float) -> Augmentation:
    none = Augmentation.none()
    return Augmentation(**{name: getattr(none, name) for name in none.__dataclass_fields__} | strengths)


def test_brightness_scales_and_contrast_keeps_the_mean():
    images = 0.3 + 0.2 * torch.rand(16, 3, SIDE, SIDE, generator=generator())
    bright, _ = augment(images, None, draw(only(brightness=0.15), 16, generator()))
    factor = bright / images
    assert factor.flatten(1).std(dim=1).max() < 1e-5
    assert 0.85 <= factor.min() < 0.9 < 1.1 < factor.max() <= 1.15
    contrast, _ = augment(images, None, draw(only(contrast=0.15), 16, generator()))
    torch.testing.assert_close(contrast.mean((1, 2, 3)), images.mean((1, 2, 3)))
    spread = contrast.flatten(1).std(dim=1) / images.flatten(1).std(dim=1)
    assert 0.85 - 1e-4 <= spread.min() < 0.9 < 1.1 < spread.max() <= 1.15 + 1e-4


def test_saturation_keeps_grey_grey_and_gamma_keeps_black_and_white():
    grey = torch.rand(8, 1, SIDE, SIDE, generator=generator()).expand(-1, 3, -1, -1)
    same, _ = augment(grey, None, draw(only(saturation=0.9), 8, generator()))
    torch.testing.assert_close(same, grey.contiguous())
    ends = (grey > 0.5).float()
    same, _ = augment(ends, None, draw(only(gamma=0.5), 8, generator()))
    assert torch.equal(same, ends)


def test_gains_act_on_channels():
    images = torch.full((8, 3, 4, 4), 0.5)
    parameters = draw(only(gains=0.2), 8, generator())
    changed, _ = augment(images, None, parameters)
    torch.testing.assert_close(changed.mean((2, 3)), 0.5 * parameters.gains)


def test_blur_is_the_gaussian_of_scipy():
    images = torch.rand(3, 3, SIDE, SIDE, generator=generator(), dtype=torch.float64)
    blurred = blur(images, torch.tensor([0.0, 0.7, 1.5], dtype=torch.float64))
    assert torch.equal(blurred[0], images[0])
    for row, sigma in ((1, 0.7), (2, 1.5)):
        expected = ndimage.gaussian_filter(
            images[row].numpy(), (0, sigma, sigma), mode="nearest", radius=(0, 6, 6)
        )
        np.testing.assert_allclose(blurred[row].numpy(), expected, atol=1e-12)


def test_noise_has_the_drawn_strength_and_is_independent_between_images():
    images = torch.full((8, 3, 64, 64), 0.5)
    parameters = draw(only(noise=0.06), 8, generator())
    changed, _ = augment(images, None, parameters)
    torch.testing.assert_close(changed.flatten(1).std(dim=1), parameters.noise, rtol=0.05, atol=0)
    likeness = torch.corrcoef((changed - 0.5).flatten(1)) - torch.eye(8)
    assert likeness.abs().max() < 0.1


# --- random parameters


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_part_of_the_batch_is_augmented_as_in_the_whole(name: str):
    images = torch.rand(8, 3, SIDE, SIDE, generator=generator())
    masks = blobs(8, 5)
    parameters = draw(AUGMENTATIONS[name], 8, generator())
    assert len(parameters) == 8
    assert len(parameters[2:5]) == 3
    whole, whole_masks = augment(images, masks, parameters)
    for part in (slice(0, 4), slice(4, 8), slice(7, 8)):
        some, some_masks = augment(images[part], masks[part], parameters[part])
        torch.testing.assert_close(some, whole[part], atol=1e-6, rtol=0)
        assert torch.equal(some_masks, whole_masks[part])


def test_the_same_seed_draws_the_same_numbers_and_strengths_do_not_shift_them():
    first, second = draw(Augmentation(), 4, generator(7)), draw(Augmentation(), 4, generator(7))
    assert torch.equal(first.affine, second.affine)
    assert torch.equal(first.seed, second.seed)
    assert torch.equal(first.seed, draw(AUGMENTATIONS["strong"], 4, generator(7)).seed)
    assert not torch.equal(first.affine, draw(Augmentation(), 4, generator(8)).affine)
