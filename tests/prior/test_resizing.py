"""`resize_bilinear` gives the same values as `F.interpolate`."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from ttdg.prior.resizing import resize_bilinear


@given(h=st.integers(1, 9), w=st.integers(1, 9), y=st.integers(1, 20), x=st.integers(1, 20))
def test_maps_are_resized_bilinearly(h, w, y, x):
    maps = torch.randn(2, 3, h, w, generator=torch.Generator().manual_seed(h + 10 * w))
    expected = F.interpolate(maps, size=(y, x), mode="bilinear", align_corners=False)
    assert torch.allclose(resize_bilinear(maps, (y, x)), expected, atol=1e-5)
