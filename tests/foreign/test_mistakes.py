"""Mistakes of users are answered in sentences that say what to give instead."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ttdg
from ttdg.adaptation.own_network import foreign
from ttdg.errors import UserError
from ttdg.foreign import fit_parts

FEW = {"folder_steps": 1, "draw": 2}


@pytest.fixture
def no_fit(monkeypatch):
    """A fit that begins is an error of its own kind."""

    def begun(*arguments, **named):
        raise AssertionError("the fit began")

    monkeypatch.setattr(fit_parts, "fit_prior", begun)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda m: F.one_hot(m, 3).permute(0, 3, 1, 2), r"give masks\.argmax\(1\)"),
        (lambda m: m[:, None], r"give masks\[:, 0\]"),
        (lambda m: m.float(), r"give masks\.long\(\)"),
        (lambda m: m / 2, "correct the masks or the activation"),
        (lambda m: 127 * m, "correct the masks or the activation"),
    ],
)
def test_masks_in_another_form_are_refused_with_the_conversion(change, remedy, small, labelled, no_fit):
    images, masks = labelled
    with pytest.raises(UserError, match=rf"masks hold whole numbers from 0, .*{remedy}"):
        ttdg.fit(small(), images, change(masks), activation="softmax")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (255 * x).to(torch.uint8), r"images are torch\.uint8; convert them to floating-point"),
        (lambda x: x.permute(0, 2, 3, 1), "32 channels, but other hospitals are simulated for grey images"),
    ],
)
def test_images_in_another_form_are_refused(change, message, small, labelled, no_fit, unchecked):
    images, masks = labelled
    with pytest.raises(UserError, match=message):
        ttdg.fit(small(), change(images), masks, activation="softmax")


COUNT = "must be a whole number, at least 1, not"
WRONG = [
    ({"hospitals": -1}, "hospitals must be a whole number, at least 0, not -1"),
    ({"hospitals": 2.5}, "hospitals must be a whole number, at least 0, not 2.5"),
    ({"steps": 2.5}, f"steps {COUNT} 2.5"),
    ({"steps": "5"}, f"steps {COUNT} '5'"),
    ({"draws": 0}, f"draws {COUNT} 0"),
    ({"mixing_steps": -2}, f"mixing_steps {COUNT} -2"),
    ({"learning_steps": 1.5}, f"learning_steps {COUNT} 1.5"),
    ({"learning_draw": 0}, f"learning_draw {COUNT} 0"),
    ({"folder_steps": "a"}, f"folder_steps {COUNT} 'a'"),
    ({"learning_rate": -1.0}, "learning_rate must be a number, at least 0, such as 0.0001, not -1.0"),
    ({"learning_rate": float("nan")}, "learning_rate must be a number, at least 0, such as 0.0001, not nan"),
    ({"controls": "yes"}, "controls must be bool, such as False, not 'yes'"),
    ({"readings": 4}, "readings must be one of two, four, seven, eight, not 4"),
    ({"seed": 2**40}, "seed must be a whole number, from -4294967295 to 4294967295, not 1099511627776"),
    ({"seed": None}, "seed must be a whole number, from -4294967295 to 4294967295, not None"),
    ({"taps": ()}, r"taps are names of modules of the network, at least one, not \(\); name them as"),
    ({"taps": 5}, "taps are names of modules of the network, at least one, not 5; .* leave `taps` out"),
    ({"taps": [3]}, r"taps are names of modules of the network, at least one, not \[3\]"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG)
def test_a_wrong_number_or_name_is_refused_before_the_fit(
    wrong, sentence, small, labelled, no_fit, unchecked
):
    with pytest.raises(UserError, match=sentence):
        ttdg.fit(small(), *labelled, activation="softmax", **wrong)


@pytest.mark.parametrize("wrong", [{"hospitals": -1}, {"taps": ()}, {"seed": 2**40}, {"steps": 2.5}])
def test_a_fit_to_source_sites_refuses_them_too(wrong, small, unchecked):
    with pytest.raises(UserError, match=r"whole number|at least one, not \(\)"):
        fit_parts.fit_to_sources(small(), None, None, **wrong)


def test_numbers_of_numpy_are_kept_as_those_of_python(small, labelled, short, unchecked):
    given = {name: np.int64(value) for name, value in short.items()} | {"learning_rate": np.float32(1e-4)}
    parts = ttdg.fit(small(), *labelled, activation="softmax", **given)
    assert {type(value) for part in parts.values() for value in part.fitted.values()} == {int, float}


def test_no_images_are_too_few(small, labelled, no_fit):
    with pytest.raises(UserError, match="at least 10 images"):
        ttdg.fit(small(), labelled[0][:0], labelled[1][:0], activation="softmax")


def test_a_file_in_place_of_the_folder_is_refused_before_the_fit(small, labelled, no_fit, tmp_path):
    (tmp_path / "parts").touch()
    with pytest.raises(UserError, match="parts is a file, but parts are saved to a folder"):
        ttdg.fit(small(), *labelled, activation="softmax", out=tmp_path / "parts")


def test_no_parts_are_fitted_to_a_program_of_torchscript(small, labelled, no_fit):
    program = torch.jit.script(nn.Sequential(*list(small())[:-1]))
    with pytest.raises(UserError, match="TorchScript; give the network from which it was made"):
        ttdg.fit(program, *labelled, activation="softmax")


def sure(order=(0, 1, 2)):
    """A network that reads the labels from the brightness of `labelled`, with its channels in an order."""
    network = nn.Sequential(nn.Conv2d(3, 3, 1))
    levels = torch.tensor([0.05, 0.45, 0.85])  # the logit of a level is -(x - level)² without x²
    with torch.no_grad():
        network[0].weight.copy_((200 * levels[list(order)] / 3)[:, None, None, None].expand(-1, 3, 1, 1))
        network[0].bias.copy_(-100 * levels[list(order)] ** 2)
    return network.eval()


def test_a_network_that_misses_a_structure_of_its_source_images_is_reported(labelled, no_fit):
    with (
        pytest.warns(
            RuntimeWarning, match=r"a Dice of 0\.\d\d for label 2, .*the order of the labels"
        ) as found,
        pytest.raises(AssertionError, match="the fit began"),
    ):
        ttdg.fit(sure((2, 1, 0)), *labelled, activation="softmax", taps="0")
    assert "label 1" not in str(found[0].message)


@pytest.mark.filterwarnings("error")
def test_a_network_that_finds_its_structures_is_fitted_without_a_warning(labelled, no_fit):
    with pytest.raises(AssertionError, match="the fit began"):
        ttdg.fit(sure(), *labelled, activation="softmax", taps="0")


@pytest.fixture(scope="module")
def fitted(labelled, short):
    """A network, and parts that were fitted to it inside `torch.nn.DataParallel`."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)).eval()
    return network, ttdg.fit(
        nn.DataParallel(network), *labelled, activation="softmax", taps=("0", "2"), **short
    )


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda n: torch.compile(n, backend="eager")])
def test_a_wrapped_network_has_the_parts_and_answers_of_the_network_inside(wrap, fitted, labelled):
    network, parts = fitted
    for method in ("judge", "universe"):
        expected = ttdg.adapt(network, method, parts=parts)(labelled[0][:2])
        assert torch.equal(ttdg.adapt(wrap(network), method, parts=parts)(labelled[0][:2]), expected)


def test_weights_are_hashed_once_for_each_adapter_and_each_fit(
    fitted, labelled, short, tmp_path, monkeypatch
):
    network, parts = fitted
    hashed, known = [], foreign.content_hash
    monkeypatch.setattr(foreign, "content_hash", lambda state: hashed.append(len(state)) or known(state))
    ttdg.fit(network, *labelled, activation="softmax", taps=("0", "2"), out=tmp_path, **short)
    assert len(hashed) == 1
    for place in (parts, tmp_path):
        hashed.clear()
        adapter = ttdg.adapt(network, "judge", parts=place)
        for _ in range(2):
            adapter(labelled[0][:2])
        assert len(hashed) == 1


def test_one_part_in_place_of_all_is_refused(fitted, unchecked):
    network, parts = fitted
    with pytest.raises(
        UserError, match=r"give all that `ttdg\.fit` returned as parts, .*not a value of type Part"
    ):
        ttdg.adapt(network, "judge", parts=parts["judge"])


def test_weights_in_another_precision_are_named(fitted):
    network, parts = fitted
    with pytest.raises(UserError, match="or in another precision"):
        ttdg.adapt(copy.deepcopy(network).half(), "judge", parts=parts)


def test_a_site_is_predicted_by_an_adapter_in_batches(small, labelled, unchecked):
    with pytest.raises(UserError, match=r"the result of `ttdg\.adapt`, not a value of type Small"):
        ttdg.predict_site(small(), labelled[0])
    adapter = ttdg.adapt(small(), "tent", activation="softmax")
    for batch in (0, -1, 2.5, "2", None, True):
        with pytest.raises(UserError, match=f"batch must be a whole number, at least 1, not {batch!r}"):
            ttdg.predict_site(adapter, labelled[0], batch=batch)
    assert ttdg.predict_site(adapter, labelled[0], batch=np.int64(5)).logits.shape == (10, 3, 32, 32)


def test_an_adapter_of_a_network_with_several_outputs_is_exported_as_a_program(fitted, labelled, tmp_path):
    class InDict(nn.Sequential):
        def forward(self, images):
            return {"out": super().forward(images)}

    adapter = ttdg.adapt(InDict(*fitted[0]), "self-training", output="out", activation="softmax", **FEW)
    adapter.learn([labelled[0]])
    assert "gives the logits" in ttdg.export(adapter, tmp_path / "a.pt2", labelled[0], format="torch")
    with (tmp_path / "a.pt2").open("rb") as file:
        found = torch.export.load(file).module()(labelled[0][:3])
    assert torch.allclose(found, adapter.predict_frozen(labelled[0][:3]), atol=1e-5)


@pytest.mark.parametrize(
    ("source", "images", "name", "message"),
    [
        (None, lambda x: x[:0], "a.pt2", r"give a batch of images .*not a tensor of shape \(0, 3, 32, 32\)"),
        (None, lambda x: x[0], "a.pt2", r"give a batch of images .*not a tensor of shape \(3, 32, 32\)"),
        (None, lambda x: x, ".", "is a folder; name the file to write"),
        ("unet.pt", lambda x: x, "a.pt2", "export a network, .*not a value of type str"),
        (
            torch.jit.script,
            lambda x: x,
            "a.pt2",
            "TorchScript .*the network from which it was made, or export to",
        ),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_sentence(
    source, images, name, message, small, labelled, tmp_path, unchecked
):
    network = nn.Sequential(*list(small())[:-1])
    given = source(network) if callable(source) else source or network
    with pytest.raises(UserError, match=message):
        ttdg.export(given, tmp_path / name, images(labelled[0]), format="torch")
    assert not list(tmp_path.iterdir())
