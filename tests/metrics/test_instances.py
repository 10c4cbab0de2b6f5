import math

import numpy as np
import pytest

from ttdg.metrics.published_variants import instance_dice


def squares(*corners, side=4, value=1.0):
    image = np.zeros((16, 16))
    for y, x in corners:
        image[y : y + side, x : x + side] = value
    return image


def test_a_missed_structure_contributes_nothing():
    value, count = instance_dice(np.zeros((16, 16)), squares((2, 2)) > 0)
    assert math.isnan(value)
    assert count == 0


def test_each_confident_instance_is_scored_by_its_best_partner():
    truth = squares((2, 2), (2, 10)) > 0
    value, count = instance_dice(squares((2, 2)), truth)
    assert (value, count) == (1.0, 1)  # the second square is missed and does not count
    value, count = instance_dice(squares((2, 2), (2, 11)), truth)
    assert count == 2
    assert value == pytest.approx((1 + 2 * 12 / 32) / 2)


def test_an_instance_below_the_confidence_is_left_out_and_a_false_one_counts_zero():
    assert instance_dice(squares((2, 2), value=0.8), squares((2, 2)) > 0)[1] == 0
    assert instance_dice(squares((2, 2)), np.zeros((16, 16), bool)) == (0.0, 1)


def test_instance_dice_ignores_a_missed_structure_that_dice_counts():
    truth, found = squares((2, 2), (2, 10)) > 0, squares((2, 2))
    dice = 2 * (truth & (found > 0)).sum() / (truth.sum() + (found > 0).sum())
    assert instance_dice(found, truth)[0] == 1 > dice
