import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from ttdg.adaptation.source_free.components import component_roots, largest_components


def partition(roots, mask):
    """The sets of pixels of a mask with the same root."""
    return {frozenset(np.flatnonzero((roots == root) & mask)) for root in np.unique(roots[mask])}


def spiral(side: int) -> torch.Tensor:
    """A path of one pixel's width from the border to the centre."""
    mask = np.zeros((side, side), bool)
    y = x = 0
    dy, dx = 0, 1
    mask[0, 0] = True
    for turn in range(2 * side):
        length = side - 1 - 2 * max(0, (turn - 1) // 2) if turn else side - 1
        for _ in range(max(length, 0)):
            y, x = y + dy, x + dx
            if not (0 <= y < side and 0 <= x < side):
                return torch.from_numpy(mask)
            mask[y, x] = True
        dy, dx = dx, -dy
        if length <= 1:
            break
    return torch.from_numpy(mask)


@given(height=st.integers(1, 40), width=st.integers(1, 40), density=st.floats(0, 1), seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_components_are_those_of_scipy(height, width, density, seed):
    mask = torch.rand(height, width, generator=torch.Generator().manual_seed(seed)) < density
    expected, _ = ndimage.label(mask.numpy())
    found = component_roots(mask[None])[0].numpy()
    assert partition(found.ravel(), mask.numpy().ravel()) == partition(expected.ravel(), mask.numpy().ravel())


def test_large_masks_near_the_percolation_threshold_and_long_paths_are_solved():
    masks = [torch.rand(256, 256, generator=torch.Generator().manual_seed(s)) < 0.59 for s in range(3)]
    for mask in (*masks, spiral(128)):
        labels, _ = ndimage.label(mask.numpy())
        sizes = np.bincount(labels[mask.numpy()])
        assert int(largest_components(mask).sum()) == sizes.max()


def test_the_largest_component_of_every_mask_of_a_batch_is_kept():
    masks = torch.zeros(2, 3, 8, 8, dtype=torch.bool)
    masks[0, 1, :3, :3] = True
    masks[0, 1, 5:7, 5:7] = True
    masks[1, 2, 4:, 4:] = True
    masks[1, 2, 0, 0] = True
    found = largest_components(masks)
    expected = masks.clone()
    expected[0, 1, 5:7, 5:7] = False
    expected[1, 2, 0, 0] = False
    assert torch.equal(found, expected)


def test_pixels_that_touch_at_a_corner_are_not_connected():
    mask = torch.eye(5, dtype=torch.bool)
    assert largest_components(mask).sum() == 1
