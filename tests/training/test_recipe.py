import pytest
import torch

from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter
from ttdg.prior import feature_maps, prior_for
from ttdg.training import Recipe


def test_the_rate_decays_from_lr_to_zero():
    recipe = Recipe(steps=100, lr=0.1)
    rates = [recipe.rate(step) for step in range(101)]
    assert rates[0] == 0.1
    assert rates[-1] == 0
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "dice"}, "unknown loss 'dice'"),
        ({"encoder": "resnet5"}, "did you mean 'resnet50'"),
        ({"augmentation": "heavy"}, "unknown augmentation"),
        ({"optimiser": "adam"}, "did you mean 'adamw'"),
        ({"precision": "16"}, "unknown precision"),
        ({"steps": 0}, "steps must be positive"),
        ({"points": 0}, "points must be positive"),
        ({"sampling": 3}, "sampling is one of 2, 4, 8, 16"),
        ({"edges": -0.5}, "edges at least 0"),
        ({"encoder_weights": "nowhere.safetensors"}, "no encoder weights at nowhere"),
    ],
)
def test_a_wrong_value_is_said_before_anything_is_trained(values, message):
    with pytest.raises(UserError, match=message):
        Recipe(**values)


def test_the_stored_recipe_names_the_weights_not_their_folder(tmp_path):
    (tmp_path / "w.safetensors").touch()
    assert (
        Recipe(encoder_weights=str(tmp_path / "w.safetensors")).to_dict()["encoder_weights"]
        == "w.safetensors"
    )


@pytest.mark.parametrize(("points", "nodes"), [(20, 20), (40, 32), (80, 32)])
def test_a_universe_of_any_size_can_be_built_and_left_alone_it_is_the_usual(points, nodes):
    network = Segmenter(NetworkSpec(2, "light"))
    prior = prior_for(network, 2, **Recipe(points=points).of_prior())
    assert (len(prior.universe), prior.spec.per_tissue) == (3 * points, nodes)
    assert prior_for(network, 2, **Recipe().of_prior()).spec == prior_for(network, 2).spec


@pytest.mark.parametrize(("sampling", "edges", "tau"), [(8, 0.5, 0.1), (2, 0.0, 0.2)])
def test_sampling_edges_and_temperature_reach_the_prior_which_still_matches(sampling, edges, tau):
    network = Segmenter(NetworkSpec(2, "light")).eval()
    prior = prior_for(network, 2, **Recipe(sampling=sampling, edges=edges, tau=tau).of_prior())
    assert (prior.spec.stride, prior.spec.edge_weight, prior.spec.tau) == (sampling, edges, tau)
    labels = torch.zeros(2, 64, 64, dtype=torch.long)
    labels[:, 16:48, 16:48] = 1
    with torch.no_grad():
        projected = prior.project(feature_maps(network, torch.rand(2, 3, 64, 64))[1])
    assert projected.shape[2:] == (64 // sampling, 64 // sampling)
    nodes = prior.nodes(projected, labels)
    assert torch.allclose(prior.match(nodes).sum(2)[nodes.mask], torch.ones(()), atol=1e-2)
