import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import ttdg
from ttdg.checkpoints import content_hash, load, load_parts, save, save_part
from ttdg.errors import UserError
from ttdg.networks import feature_maps
from ttdg.prior import MorphologyPrior


@pytest.fixture
def folder(tmp_path, disc_model):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    return tmp_path / "model"


def test_a_checkpoint_is_loaded_as_it_was_saved(folder, disc_model):
    model = load(folder)
    for name, value in disc_model.network.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], value)
    assert model.card.benchmark == disc_model.card.benchmark
    assert model.card.network == disc_model.card.network
    assert model.card.versions["torch"] == torch.__version__
    assert not model.network.training


def test_changed_weights_are_refused(folder):
    state = load_file(folder / "model.safetensors")
    save_file(
        {name: value + 1 if value.is_floating_point() else value for name, value in state.items()},
        folder / "model.safetensors",
    )
    with pytest.raises(UserError, match="does not have the hash"):
        load(folder)


def test_a_truncated_file_is_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="copy the checkpoint again"):
        load(folder)


def change(folder, **values):
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | values))


def test_another_network_than_the_card_describes_is_refused(folder):
    change(folder, network={"labels": 5, "encoder": "light", "channels": 3, "strides": "v1.5"})
    with pytest.raises(UserError, match=r"does not fit the network.*segmentation_head"):
        load(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change(f, format=99), "checkpoint format 99"),
        (lambda f: change(f, surprise=1), "missing or unknown field"),
        (lambda f: (f / "model.json").write_text("{"), "is not a model card"),
        (lambda f: (f / "model.json").unlink(), "a checkpoint is a folder with model.json"),
        (lambda f: (f / "model.safetensors").unlink(), "copy the whole checkpoint folder"),
    ],
)
def test_every_kind_of_damage_has_its_message(folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message):
        load(folder)


def test_saving_again_replaces_the_whole_folder(folder, disc_model):
    (folder / "stray").write_text("an unrelated file")
    save(folder, disc_model.network, disc_model.card)
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_all_files_of_a_checkpoint_have_the_same_permissions(folder):
    assert len({path.stat().st_mode & 0o777 for path in folder.iterdir()}) == 1


def test_a_failed_save_leaves_the_old_checkpoint(folder, disc_model, monkeypatch):
    before = (folder / "model.json").read_text()
    monkeypatch.setattr("ttdg.checkpoints.model.versions", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(folder, disc_model.network, disc_model.card)
    assert (folder / "model.json").read_text() == before
    assert load(folder)


def test_the_demo_model_is_embedded_and_small():
    model = ttdg.load("demo")
    assert len(model.card.sources) == 4
    assert sum(p.numel() for p in model.network.parameters()) * 4 < 5e6
    assert min(model.card.validation.values()) > 0.85


def test_the_demo_model_gives_finite_logits():
    model = ttdg.load("demo")
    with torch.no_grad():
        logits = model.network(torch.randn(2, 3, 64, 80))
    assert logits.shape == (2, model.card.network.labels, 64, 80)
    assert logits.isfinite().all()


def test_the_parts_of_the_demo_model_load_and_match_finitely():
    model = ttdg.load("demo")
    assert set(model.parts) == {"prior", "judge", "fingerprint"}
    assert all(value.isfinite().all() for part in model.parts.values() for value in part.tensors.values())
    prior = MorphologyPrior.from_part(model.parts["prior"])
    with torch.no_grad():
        logits, maps = feature_maps(model.network, torch.randn(2, 3, 64, 64))
        nodes = prior.nodes(prior.project(maps), logits.argmax(1))
        assert prior.match(nodes).isfinite().all()
        assert prior.energy(nodes).isfinite().all()


def test_the_judge_of_the_demo_model_was_fitted_with_its_prior():
    parts = ttdg.load("demo").parts
    assert parts["judge"].settings["prior"] == parts["prior"].digest


@pytest.mark.parametrize("name", ["prior", "judge"])
def test_saving_a_part_of_the_demo_model_again_gives_the_same_part(tmp_path, name):
    model = ttdg.load("demo")
    save_part(tmp_path, name, model.parts[name], model.card.sha256)
    again = load_parts(tmp_path, model.card.sha256)[name]
    assert again.settings == model.parts[name].settings
    assert again.fitted == model.parts[name].fitted
    assert again.tensors.keys() == model.parts[name].tensors.keys()
    assert content_hash(again.tensors) == content_hash(model.parts[name].tensors)
