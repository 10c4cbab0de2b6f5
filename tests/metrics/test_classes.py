"""Accuracy of classifications."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ttdg.metrics import accuracy, image_classes


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5))
def test_the_accuracy_is_one_where_the_largest_logit_is_that_of_the_class(seed, images, classes):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator)
    truth = torch.randint(classes, (images,), generator=generator)
    maps = logits[:, :, None, None].expand(-1, -1, 4, 3)
    labels = truth[:, None, None].expand(-1, 4, 3)
    assert accuracy(maps, labels).tolist() == [
        float(max(range(classes), key=row.__getitem__) == t)
        for row, t in zip(logits.tolist(), truth.tolist(), strict=True)
    ]


def test_a_map_that_varies_has_the_class_of_its_mean_probability():
    logits = torch.zeros(1, 2, 1, 3)
    logits[0, 0] = torch.tensor(
        [0.4, 0.4, -5.0]
    )  # two of three pixels prefer the first class, but only a little
    assert image_classes(logits).tolist() == [1]
