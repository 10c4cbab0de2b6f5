import numpy as np
import pytest
import torch

from ttdg.errors import UserError
from ttdg.metrics import region_masks, region_probabilities

REGIONS = {"disc": (1, 2), "cup": (2,)}


def test_a_region_is_as_probable_as_its_labels_together():
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    label = logits.softmax(1).float()
    united = region_probabilities(logits, REGIONS)
    torch.testing.assert_close(united, torch.stack((label[:, 1] + label[:, 2], label[:, 2]), 1))


def test_probabilities_are_float32_within_0_and_1_however_the_network_answers():
    logits = 30 * torch.randn(4, 9, 16, 16)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        probabilities = region_probabilities(logits.to(dtype), {"all": tuple(range(9)), "none but 0": (0,)})
        assert probabilities.dtype == torch.float32
        assert 0 <= float(probabilities.min()) <= float(probabilities.max()) <= 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_a_mask_is_where_one_of_the_labels_is(dtype):
    labels = torch.randint(0, 4, (3, 6, 7))
    masks = region_masks(labels.to(dtype), REGIONS)
    assert np.array_equal(masks[:, 0], np.isin(labels, (1, 2)))
    assert np.array_equal(masks[:, 1], labels == 2)


def test_a_label_the_network_does_not_know_is_named():
    with pytest.raises(UserError, match=r"'disc'.*\(1, 2\).*labels 0 to 1"):
        region_probabilities(torch.zeros(1, 2, 3, 3), REGIONS)
