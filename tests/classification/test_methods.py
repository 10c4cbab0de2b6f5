"""Every method adapts a classifier, or refuses it in one sentence."""

import pytest
import torch

from ttdg.adaptation import METHODS, adapt, applies, defaults
from ttdg.adaptation.judge.evidence import candidate_accuracy
from ttdg.errors import UserError
from ttdg.metrics import accuracy

CLASSIFICATION = "classification"
QUICK = {"steps": 1, "folder_steps": 1, "draw": 2, "views": 2}  # for methods that have these options
REFUSED = {"universe", "cbmt", "dpl", "upl-sfda", "cpr", "tegda", "pass", "deynet", "tasd-r"}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_the_methods_that_work_on_regions_or_pixels_are_these():
    assert {name for name in METHODS if not applies(name, CLASSIFICATION)} == REFUSED
    assert all(applies(name, "segmentation") for name in METHODS)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_method_for_segmentation_refuses_a_classifier_in_one_sentence(name, model):
    with pytest.raises(UserError, match=f"'{name}' works on the regions and pixels") as error:
        adapt(model, name)
    assert str(error.value).count(". ") == 0


def kept_with(*parts: str) -> list[str]:
    """The methods that apply and need these parts at most; those that need a fitted one are slow."""
    return [name for name, method in METHODS.items() if name not in REFUSED and {*method.parts} <= {*parts}]


@pytest.mark.parametrize("name", kept_with("prior"))
def test_a_method_without_fitted_parts_answers_every_class_and_its_reset_restores_the_source(
    name, model, literal, images
):
    answers_and_resets(literal if name == "universe-literal" else model, name, images)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({*kept_with("prior", "judge", "nc-ttt", "itta")} - {*kept_with("prior")})
)
def test_a_method_with_fitted_parts_answers_every_class_and_its_reset_restores_the_source(
    name, fitted, images
):
    answers_and_resets(fitted, name, images)


def answers_and_resets(source, name, images) -> None:
    adapter = adapt(source, name, **{key: value for key, value in QUICK.items() if key in defaults(name)})
    adapter.reset()
    first = adapter(images)
    assert first.shape == (3, 4, 32, 32)
    assert first.isfinite().all()
    adapter.reset()
    torch.testing.assert_close(adapter(images), first, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("views", ["flips", "scales"])
def test_answers_of_a_classifier_can_be_averaged_over_views(views, model, images):
    logits = adapt(model, "source", views=views)(images)
    assert logits.shape == (3, 4, 32, 32)
    torch.testing.assert_close(logits, logits[..., :1, :1].expand_as(logits), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_judge_expects_an_accuracy_between_zero_and_one(fitted, images):
    adapter = adapt(fitted, "judge")
    adapter(images)
    expected = adapter.assessment().dice
    assert ((expected >= -0.5) & (expected <= 1.5)).all()
    assert fitted.parts["judge"].settings["regions"].keys() == {"ring", "square", "triangle", "cross"}


def test_the_judge_learns_the_accuracy_of_every_candidate():
    generator = torch.Generator().manual_seed(0)
    P = torch.rand(5, 3, 4, 2, 2, generator=generator).softmax(2)
    labels = torch.randint(4, (3,), generator=generator)[:, None, None].expand(3, 2, 2)
    scores = candidate_accuracy(P, labels)
    assert scores.shape == (3, 5, 1)
    for candidate, column in zip(P, scores.unbind(1), strict=True):
        assert column[:, 0].equal(accuracy(candidate.log(), labels))


def test_self_training_of_a_classifier_minimises_cross_entropy_alone(model):
    with_dice, without = (adapt(model, "self-training", dice=dice) for dice in (True, False))
    logits, labels = torch.randn(2, 4, 8, 8), torch.rand(2, 4, 8, 8).softmax(1)
    assert with_dice.objective(logits, labels).equal(without.objective(logits, labels))
