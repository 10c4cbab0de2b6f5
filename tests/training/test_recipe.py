import pytest

from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter
from ttdg.prior import prior_for
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
