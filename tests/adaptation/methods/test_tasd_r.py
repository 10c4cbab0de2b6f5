"""TASD-R, a reconstruction: its dictionary, its shape priors, and the two agreements."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttdg.adaptation.methods.tasd_r import METHOD, dice_disagreement, mild_photometric_view
from ttdg.networks.heads.shapes import GRID, centred_shapes, learn_dictionary, sparse_code, translate_maps


def ellipses(count: int, seed: int, side: int = 64) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    masks = [
        ((y - cy) / a) ** 2 + ((x - cx) / b) ** 2 < 1
        for cy, cx, a, b in zip(
            *rng.uniform(0.35, 0.65, (2, count)), *rng.uniform(0.1, 0.28, (2, count)), strict=True
        )
    ]
    return torch.from_numpy(np.stack(masks)).float()[:, None]


def dice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 2 * (a * b).sum((-2, -1)) / (a + b).sum((-2, -1))


def a_dictionary(count: int = 16) -> torch.Tensor:
    shapes = centred_shapes(ellipses(150, 0))[0].flatten(1)
    return learn_dictionary(shapes, count, torch.Generator().manual_seed(0), steps=100)


def test_the_dictionary_reconstructs_shapes_it_was_not_learnt_from():
    atoms = a_dictionary()
    held_out = centred_shapes(ellipses(40, 1))[0].flatten(1)
    found = (sparse_code(held_out, atoms) @ atoms).view(-1, GRID, GRID) > 0.5
    assert dice(found.float(), held_out.view(-1, GRID, GRID)).mean() > 0.9


def test_atoms_and_coefficients_are_not_negative_and_atoms_not_long():
    atoms = a_dictionary(8)
    assert (atoms >= 0).all()
    assert atoms.norm(dim=1).max() <= 1 + 1e-5
    assert (sparse_code(centred_shapes(ellipses(5, 2))[0].flatten(1), atoms) >= 0).all()


def test_permuting_atoms_permutes_coefficients_alone():
    atoms, shapes = a_dictionary(8), centred_shapes(ellipses(5, 2))[0].flatten(1)
    order = torch.randperm(8)
    assert torch.allclose(sparse_code(shapes, atoms)[:, order], sparse_code(shapes, atoms[order]), atol=1e-3)


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_a_shape_pasted_at_its_centre_is_the_mask(seed):
    masks = ellipses(3, seed)
    shapes, centres = centred_shapes(masks)
    assert dice(translate_maps(shapes, centres, (64, 64)), masks).min() > 0.9
    middle = centred_shapes(shapes)[1]
    assert middle.abs().max() < 0.05


def test_an_absent_structure_is_an_empty_shape():
    shapes, centres = centred_shapes(torch.zeros(1, 2, 32, 32))
    assert shapes.abs().max() == 0
    assert centres.abs().max() == 0
    assert sparse_code(shapes.flatten(2)[0], a_dictionary(4)).abs().max() == 0


def test_identical_views_agree_on_shapes(ready):
    adapter = ready("tasd-r").adapt("tasd-r")
    view = torch.randn(2, 3, 32, 32)
    codes = adapter._predict(torch.cat([view, view]))[1]
    assert (codes[:2] - codes[2:]).abs().max() < 1e-6
    p = torch.rand(2, 1, 8, 8).round()
    assert dice_disagreement(p, p) < 1e-6


def test_a_view_keeps_places_and_the_image_s_range_but_for_noise():
    images = torch.randn(4, 3, 32, 32)
    view = mild_photometric_view(images, torch.Generator().manual_seed(0))
    assert torch.corrcoef(torch.stack([view.flatten(), images.flatten()]))[0, 1] > 0.9
    assert (view.amax((1, 2, 3)) <= images.amax((1, 2, 3)) * 1.1).all()
    assert not torch.allclose(view, images, atol=1e-2)


def test_the_dictionary_never_moves_and_the_head_begins_anew_with_every_batch(ready):
    source = ready("tasd-r")
    adapter = source.adapt("tasd-r", lr=1e-2)
    adapter(torch.randn(2, 3, 32, 32))
    part = source.parts["tasd-r"].tensors
    assert torch.equal(adapter.shapes.atoms, part["atoms"])
    assert not torch.equal(adapter.shapes.fuse.weight, part["fuse.weight"])
    adapter.reset()
    assert all(torch.equal(value, part[name]) for name, value in adapter.shapes.state_dict().items())


def test_it_is_called_a_reconstruction_wherever_it_appears():
    assert "reconstruct" in METHOD.summary
    assert "reconstruct" in METHOD.paper
    assert "reconstruct" in METHOD.origin


def test_the_objective_is_the_coefficients_squared_distance_and_two_agreements_of_masks(ready):
    """By hand: sums over an image's coefficients, means over images, Dice one by one."""
    source = ready("tasd-r", labels=3)
    adapter = source.adapt("tasd-r")
    views = torch.randn(4, 3, 32, 32)
    views[2:] += 0.5 * torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        adapter.shapes.fuse.weight.normal_()
        adapter.shapes.regress[-1].weight.mul_(30)  # else untrained coefficients hardly depend on the view
        logits, codes, prior = adapter._predict(views)
        found = adapter.objective(views).item()
    masks = logits.softmax(1)[:, 1:]

    def apart(a: torch.Tensor, b: torch.Tensor) -> float:
        losses = [
            1 - (2 * (a[i, n] * b[i, n]).sum() + 1) / (a[i, n].sum() + b[i, n].sum() + 1)
            for i in range(len(a)) for n in range(2)
        ]  # fmt: skip
        return sum(losses).item() / len(losses)

    terms = [
        sum(((codes[i] - codes[i + 2]) ** 2).sum().item() for i in range(2)) / 2,
        apart(masks[:2], masks[2:]),
        apart(masks, prior),
    ]
    assert min(terms) > 1e-3
    assert found == pytest.approx(sum(terms), rel=1e-4)
    assert all(abs(found - sum(terms) + term) > 1e-4 * found for term in terms), "each is seen"


def test_affine_head_and_fusion_are_learnt_as_declared(ready):
    source = ready("tasd-r")
    adapter = source.adapt("tasd-r", lr=1e-2)
    adapter(torch.randn(2, 3, 32, 32))
    part = source.parts["tasd-r"].tensors
    now = adapter.shapes.state_dict()
    moved = {name.split(".")[0] for name in part if not torch.equal(now[name], part[name])}
    assert moved == {"regress", "fuse"}
    assert METHOD.adapts == "BatchNorm γ, β, shape head and fusion"
