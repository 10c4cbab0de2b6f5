"""Scores of two discs equal the values of other implementations, to six digits."""

import pytest
import torch
from torch import Tensor

from ttdg.metrics import alignment_curve, dice, max_alignment, structure, surface_scores
from ttdg.metrics.published_variants import alignment_vptta, structure_vptta

EMPTY = torch.zeros(1, 1, 64, 64, dtype=torch.bool)
NAMES = ("P, G", "G, G", "empty, G", "full, G", "empty, empty", "P, empty", "full, full", "empty, full")
DICE = (0.808896, 1, 0, 0.290841, 1, 0, 1, 0)
ALIGNMENT = (0.915203, 1.000244, 0.250061, 0.250061, 1.000244, 0.873993, 1.000244, 0)
ALIGNMENT_VPTTA = (0.915203, 1.000244, 0.250061, 0.250061, 0, 0.873993, 1.000244, 1.000244)
STRUCTURE = (0.818499, 1, 0.414917, 0.085083, 1, 0.873779, 1, 0)
STRUCTURE_VPTTA = (0.818854, 1.000488, 0.414917, 0.085083, 1, 0.873779, 1, 0)


@pytest.fixture(scope="module")
def cases(disc_pair) -> tuple[Tensor, Tensor]:
    prediction, truth, _ = disc_pair
    masks = {"P": prediction, "G": truth, "empty": EMPTY, "full": ~EMPTY}
    first, second = zip(*((masks[name] for name in pair.split(", ")) for pair in NAMES), strict=True)
    return torch.cat(first), torch.cat(second)


def published(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dice_alignment_and_structure_of_masks_have_the_published_values(cases, dtype):
    prediction, truth = cases
    maps = prediction.to(dtype)
    near = {"rtol": 0, "atol": 1.1e-6}
    torch.testing.assert_close(dice(maps, truth), published(DICE), **near)
    torch.testing.assert_close(alignment_curve(maps, truth)[:, :, 128], published(ALIGNMENT), **near)
    torch.testing.assert_close(structure(maps, truth), published(STRUCTURE), **near)


def test_the_published_variants_have_the_values_of_the_published_code(cases):
    prediction, truth = cases
    near = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(alignment_vptta(prediction, truth), published(ALIGNMENT_VPTTA), **near)
    torch.testing.assert_close(
        structure_vptta(prediction.double(), truth), published(STRUCTURE_VPTTA), **near
    )


def test_the_soft_map_has_the_published_values(disc_pair):
    _, truth, soft = disc_pair
    curve = alignment_curve(soft, truth)
    assert float(max_alignment(curve)) == pytest.approx(0.952790, abs=1e-6)
    assert float(curve[0, 0, 127]) == pytest.approx(0.920520, abs=1e-6)
    assert float(structure(soft, truth)) == pytest.approx(0.853783, abs=1e-6)
    assert float(structure_vptta(soft, truth)) == pytest.approx(0.854169, abs=1e-6)


def test_surface_distances_have_the_published_values(disc_pair):
    prediction, truth, _ = disc_pair
    scores = surface_scores(prediction, truth)
    assert float(scores.hd95) == pytest.approx(5.385165, abs=1e-6)
    assert float(scores.hd95_pooled) == pytest.approx(5.385165, abs=1e-6)
    assert float(scores.assd) == pytest.approx(2.587137, abs=1e-6)
