"""Parts serve the weights that they were fitted to, and what is missing or wrong names `ttdg.fit`."""

import copy
from dataclasses import replace

import pytest
import torch

import ttdg
from ttdg.errors import UserError
from ttdg.foreign import save_parts

METHODS = ("judge", "universe", "tent")


@pytest.fixture(scope="module")
def fitted(labelled, short):
    """A network and its parts."""
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.Upsample(scale_factor=2)
    ).eval()
    return network, ttdg.fit(network, *labelled, activation="softmax", **short)


def changed(network):
    """A copy with one other value."""
    other = copy.deepcopy(network)
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1
    return other


def without_hash(parts):
    """The parts as earlier versions made them."""
    settings = {name: value for name, value in parts["output"].settings.items() if name != "weights"}
    return {**parts, "output": replace(parts["output"], settings=settings)}


@pytest.mark.parametrize("method", METHODS)
def test_parts_in_memory_are_refused_for_other_weights(method, fitted, labelled):
    network, parts = fitted
    with pytest.raises(UserError, match="fitted to other weights than those of this network"):
        ttdg.adapt(changed(network), method, parts=parts)
    assert ttdg.adapt(copy.deepcopy(network), method, parts=parts)(labelled[0][:2]).isfinite().all()


def test_parts_in_a_folder_are_refused_for_other_weights_and_name_the_fit(fitted, tmp_path):
    network, parts = fitted
    save_parts(tmp_path, parts, network)
    with pytest.raises(
        UserError,
        match=r"fitted for other weights than those of this network; load the weights.*`ttdg\.fit`",
    ):
        ttdg.adapt(changed(network), "judge", parts=tmp_path)


def test_parts_of_an_earlier_version_still_load(fitted, labelled, tmp_path):
    network, parts = fitted
    save_parts(tmp_path, without_hash(parts), network)
    images = labelled[0][:2]
    expected = ttdg.adapt(network, "judge", parts=parts)(images)
    assert torch.equal(ttdg.adapt(network, "judge", parts=tmp_path)(images), expected)
    assert torch.equal(ttdg.adapt(network, "judge", parts=without_hash(parts))(images), expected)


def test_a_missing_part_of_a_users_network_is_made_with_fit(small):
    with pytest.raises(
        UserError, match=r"needs the part 'prior', which this network .*`ttdg\.fit`"
    ) as raised:
        ttdg.adapt(small(), "judge")
    assert "fit-prior" not in str(raised.value)
    with pytest.raises(UserError, match=r"`ttdg\.fit` does not make this part; .*ttdg train --with deynet"):
        ttdg.adapt(small(), "deynet")


@pytest.mark.parametrize("damage", [lambda raw: raw[:20], lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])])
def test_a_damaged_file_of_a_users_parts_is_made_again_with_fit(damage, fitted, tmp_path):
    network, parts = fitted
    save_parts(tmp_path, parts, network)
    path = tmp_path / "prior.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"prior\.safetensors is .*`ttdg\.fit`") as raised:
        ttdg.adapt(network, "judge", parts=tmp_path)
    assert "fit-prior" not in str(raised.value)


def test_a_part_that_cannot_be_used_names_the_command_and_fit(fitted):
    network, parts = fitted
    settings = {name: value for name, value in parts["judge"].settings.items() if name != "regions"}
    broken = {**parts, "judge": replace(parts["judge"], settings=settings)}
    with pytest.raises(
        UserError, match=r"'judge' of this model cannot be used .*fit-judge` again; .*`ttdg\.fit`"
    ):
        ttdg.adapt(network, "judge", parts=broken)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_parts_are_fitted_without_gradients_of_the_caller_as_outside(mode, fitted, labelled, short):
    network, parts = fitted
    with mode():
        inside = ttdg.fit(network, *labelled, activation="softmax", **short)
    assert all(inside[name].digest == parts[name].digest for name in parts)
