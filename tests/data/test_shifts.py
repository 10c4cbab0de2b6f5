"""Simulated shifts: neutral parameters change nothing, and only annotation shifts move labels without the image."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ttdg.data.shifts import Shift, apply_photometric, apply_shift, draw_photometric, draw_shift, simulate

SIDE, GEOMETRY, ANATOMY = 48, ("zoom", "angle"), ("growth", "inner", "border", "inner_border")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def discs(b: int = 3, outer: float = 12, inner: float = 6) -> Tensor:
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    shift = torch.arange(b)[:, None, None] * 3
    r = ((y - 22 - shift) ** 2 + (x - 20) ** 2).float().sqrt()
    return (r < outer).long() + (r < inner).long()


def coloured(labels: Tensor) -> Tensor:
    """Images whose pixels are their labels, scaled to 0, ½ and 1."""
    return (labels / 2)[:, None].expand(-1, 3, -1, -1).contiguous()


def noisy(labels: Tensor, seed: int = 0) -> Tensor:
    return (
        0.2 + 0.3 * coloured(labels) + 0.3 * torch.rand(len(labels), 3, SIDE, SIDE, generator=generator(seed))
    )


def neutral(b: int) -> Shift:
    return draw_shift(b, generator(), strength=0.0)


def area(labels: Tensor, value: int) -> Tensor:
    return (labels >= value).sum((1, 2)).float()


@pytest.mark.parametrize("seed", range(4))
def test_strength_zero_leaves_images_and_labels_as_they_are(seed):
    labels = discs()
    images = noisy(labels)
    moved, annotated = simulate(images, labels, generator(seed), strength=0.0)
    assert torch.allclose(moved, images, atol=1e-5)
    assert torch.equal(annotated, labels)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), strength=st.floats(0.1, 1.5), group=st.integers(1, 3))
def test_images_stay_in_range_and_labels_stay_labels(seed, strength, group):
    labels = discs()
    moved, annotated = simulate(noisy(labels), labels, generator(seed), strength, group=group)
    assert moved.isfinite().all()
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert annotated.dtype == labels.dtype
    assert set(annotated.unique().tolist()) <= {0, 1, 2}


def test_equal_seeds_give_equal_shifts():
    labels = discs()
    a, b, c = (simulate(noisy(labels), labels, generator(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0], c[0])


def test_a_group_shares_one_shift():
    shift = draw_shift(6, generator(3), group=2)
    for field in fields(shift):
        values = getattr(shift, field.name)
        assert torch.equal(values[0::2], values[1::2]), field.name
    assert not torch.equal(shift.seed[0], shift.seed[2])


def test_every_component_occurs_and_all_but_one_are_sometimes_absent():
    drawn, still = draw_shift(200, generator(0)), neutral(200)
    assert (drawn.inner_border != 0).all()  # annotators always differ here
    for name in {field.name for field in fields(drawn)} - {"seed", "inner_border"}:
        present = (getattr(drawn, name) != getattr(still, name)).reshape(200, -1).any(1)
        assert 0.3 < present.float().mean() < 0.7, name


def test_without_anatomy_its_components_are_neutral():
    drawn, still = draw_shift(50, generator(0), anatomy=False), neutral(50)
    assert all(torch.equal(getattr(drawn, name), getattr(still, name)) for name in ANATOMY)
    assert not torch.equal(drawn.zoom, still.zoom)


@pytest.mark.parametrize("seed", range(4))
def test_without_anatomy_labels_move_with_the_image(seed):
    labels = discs()
    drawn = draw_shift(3, generator(seed), anatomy=False)
    only = replace(neutral(3), **{name: getattr(drawn, name) for name in GEOMETRY})
    moved, annotated = apply_shift(coloured(labels), labels, only, coloured(labels))
    seen = moved[:, 0]
    plain = (seen - (seen * 2).round() / 2).abs() < 0.01  # away from interpolated borders
    assert plain.float().mean() > 0.7
    assert ((seen * 2).round().long() == annotated)[plain].all()


@pytest.mark.parametrize("growth", [-0.4, 0.4])
def test_growth_changes_the_structure_in_image_and_labels_alike(growth):
    labels = discs()
    shift = replace(neutral(3), growth=torch.full((3,), growth))
    moved, annotated = apply_shift(coloured(labels), labels, shift, coloured(labels))
    for value in (1, 2):
        ratio = area(annotated, value) / area(labels, value)
        assert (ratio > 1.2).all() if growth > 0 else (ratio < 0.85).all()
        in_image = (moved[:, 0] > value / 2 - 0.25).sum((1, 2))
        assert ((in_image / area(annotated, value) - 1).abs() < 0.1).all()
    corner = (slice(None), slice(None), slice(-6, None), slice(-6, None))
    assert torch.allclose(moved[corner], coloured(labels)[corner], atol=1e-3)


@pytest.mark.parametrize("border", [-0.15, 0.15])
def test_the_inner_border_changes_the_annotation_only(border):
    labels = discs()
    outline = torch.full((3,), -border)  # for structures with nothing inside
    shift = replace(neutral(3), inner_border=torch.full((3,), border), border=outline)
    moved, annotated = apply_shift(coloured(labels), labels, shift, coloured(labels))
    assert torch.allclose(moved, coloured(labels), atol=1e-5)
    assert torch.equal(annotated > 0, labels > 0)
    change = area(annotated, 2) - area(labels, 2)
    assert (change > 0).all() if border > 0 else (change < 0).all()


def test_a_single_structure_uses_the_outer_border():
    labels = discs().clamp(max=1)
    shift = replace(neutral(3), border=torch.full((3,), 0.15), inner_border=torch.full((3,), -0.3))
    _, annotated = apply_shift(coloured(labels), labels, shift, coloured(labels))
    assert (area(annotated, 1) > area(labels, 1)).all()


def test_a_faded_inner_structure_keeps_its_labels_and_its_surroundings():
    labels = discs()
    shift = replace(neutral(3), inner=torch.full((3,), 0.4))
    moved, annotated = apply_shift(coloured(labels), labels, shift, coloured(labels))
    assert torch.equal(annotated, labels)
    assert moved[:, 0][labels == 2].mean() < coloured(labels)[:, 0][labels == 2].mean() - 0.2
    far = discs(outer=20) == 0
    assert torch.allclose(moved[:, 0][far], coloured(labels)[:, 0][far], atol=1e-4)


def test_an_image_without_structures_is_shifted_too():
    labels = torch.zeros(2, SIDE, SIDE, dtype=torch.long)
    moved, annotated = simulate(noisy(labels), labels, generator(1))
    assert moved.isfinite().all()
    assert (annotated == 0).all()


# --- photometric shifts as an augmentation


def test_photometric_shifts_change_the_given_share_of_images_and_keep_the_range():
    drawn = draw_photometric(2000, 0.3, generator())
    assert drawn.changed.float().mean() == pytest.approx(0.3, abs=0.03)
    images = noisy(discs(8))
    some = draw_photometric(8, 0.5, generator(1))
    changed = apply_photometric(images, images[some.partner], some)
    assert 0 < some.changed.sum() < 8
    assert torch.equal(changed[~some.changed], images[~some.changed])
    assert ((changed - images).abs().mean((1, 2, 3))[some.changed] > 0.01).all()
    assert changed.min() >= 0
    assert changed.max() <= 1


def test_photometric_shifts_do_not_move_structures():
    """The geometric and anatomical parameters are ignored: an image on which only they act stays as it is."""
    images = noisy(discs())
    drawn = draw_photometric(3, 1.0, generator())
    moved = draw_shift(3, generator(5))
    still = replace(
        drawn, shift=replace(neutral(3), **{name: getattr(moved, name) for name in (*GEOMETRY, *ANATOMY)})
    )
    assert torch.allclose(apply_photometric(images, images, still), images, atol=1e-5)


def test_photometric_shifts_equal_the_simulated_ones_without_geometry_and_noise():
    labels = discs()
    images = noisy(labels)
    drawn = draw_photometric(3, 1.0, generator(2))
    same = {name: getattr(neutral(3), name) for name in (*GEOMETRY, *ANATOMY, "noise")}
    shift = replace(drawn.shift, **same)
    expected, _ = apply_shift(images, labels, shift, images[drawn.partner])
    changed = apply_photometric(images, images[drawn.partner], replace(drawn, shift=shift))
    assert torch.allclose(changed, expected, atol=1e-4)


def test_a_part_of_the_batch_is_shifted_as_in_the_whole():
    images = noisy(discs(6))
    drawn = draw_photometric(6, 0.7, generator(3))
    whole = apply_photometric(images, images[drawn.partner], drawn)
    for part in (slice(0, 3), slice(3, 6)):
        some = apply_photometric(images[part], images[drawn.partner[part]], drawn[part])
        assert torch.allclose(some, whole[part], atol=1e-6)
