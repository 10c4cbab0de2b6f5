"""Source training of a classifier: what it needs, its universe, and its checkpoint."""

import pytest
import torch

from ttdg.errors import UserError
from ttdg.networks import Classifier, feature_maps
from ttdg.prior import LiteralPrior
from ttdg.training import Recipe


def test_a_checkpoint_is_read_as_a_classifier_and_states_its_accuracy(model):
    assert isinstance(model.network, Classifier)
    assert model.card.benchmark.task == "classification"
    assert set(model.card.validation) == {"accuracy"}


def test_the_literal_universe_has_d_points_and_nodes_spread_over_the_whole_image(literal):
    prior = LiteralPrior.from_part(literal.parts["prior"])
    assert prior.universe.shape == (12, 256)
    assert prior.spec.class_matrix == "none"
    assert prior.spec.levels == ("e2", "e3", "e4")
    _, maps = feature_maps(literal.network, torch.randn(2, 3, 32, 32))
    for label in (0, 3):  # the predicted class does not choose the nodes
        nodes = prior.nodes(prior.project(maps, (32, 32)), torch.full((2, 32, 32), label))
        assert nodes.mask.all()
        assert nodes.labels.unique().tolist() == [1]
        low, high = nodes.coordinates.amin((0, 1)), nodes.coordinates.amax((0, 1))
        assert (low < 0.25).all()
        assert (high > 0.75).all()


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"loss": "dice+ce"}, "choose the loss 'ce'"),
        ({"loss": "ce", "universe_loss": "literal"}, "choose class_matrix 'none'"),
    ],
)
def test_settings_that_need_structures_are_refused(fields, remedy):
    with pytest.raises(UserError, match=remedy):
        Recipe(**fields).check_task("classification")
    Recipe(**fields).check_task("segmentation")
