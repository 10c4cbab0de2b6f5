"""`ttdg export` and `ttdg.export` write networks that other programs run with the same logits."""

import copy
import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ttdg
from ttdg.adaptation.own_network.output import OutputForm, read_as
from ttdg.checkpoints import file_hash, load, save
from ttdg.cli import app
from ttdg.errors import UserError

onnx = pytest.importorskip("onnx", reason="ONNX files need the package onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX files are run by onnxruntime")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def test_a_checkpoint_is_exported_with_its_card_and_runs_elsewhere(disc_model, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    model, path = load(tmp_path / "model"), tmp_path / "out.onnx"
    result = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--onnx", str(path)])
    assert result.exit_code == 0, result.exception
    assert "onnxruntime gives the logits of the network" in result.output
    images = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(run_onnx(path, images), model.network(images), atol=1e-4)
    card = json.loads(path.with_name("out.onnx.json").read_text())
    assert card["benchmark"]["labels"] == ["background", "disc"]
    assert card["sha256"] == file_hash(path)
    inside = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert json.loads(inside["card"])["benchmark"] == card["benchmark"]


@pytest.mark.slow
def test_a_learned_network_is_exported_and_not_the_source(disc_model, discs, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    path, images = tmp_path / "out.onnx", torch.rand(2, 3, 32, 32)
    learning = ["--set", "folder_steps=2", "--set", "lr=0.05", "--set", "momentum=0.0", "--set", "draw=2"]
    result = CliRunner().invoke(
        app,
        [
            "export",
            str(tmp_path / "model"),
            "--onnx",
            str(path),
            "-i",
            str(discs / "west" / "images"),
            *learning,
        ],
    )
    assert result.exit_code == 0, result.exception
    with torch.no_grad():
        assert not torch.allclose(run_onnx(path, images), disc_model.network(images), atol=1e-2)
    assert json.loads(path.with_name("out.onnx.json").read_text())["adapted"]["method"] == "self-training"


def test_options_of_a_method_without_images_to_learn_are_refused(disc_model, tmp_path):
    save(tmp_path / "model", disc_model.network, disc_model.card)
    for words in (["--method", "universe"], ["--set", "lr=1"]):
        result = CliRunner().invoke(
            app, ["export", str(tmp_path / "model"), "--torch", str(tmp_path / "z.pt2"), *words]
        )
        assert isinstance(result.exception, UserError)
        assert "name its folder with --images" in str(result.exception)
    assert not (tmp_path / "z.pt2").exists()


def test_the_network_of_an_adapter_answers_as_the_adapter(tmp_path):
    images = torch.rand(2, 1, 16, 16)
    adapter = ttdg.adapt(network(), "self-training", activation="softmax", lr=1e-2, steps=1, draw=2)
    adapter(images)
    ttdg.export(adapter, tmp_path / "a.onnx", images)
    assert torch.allclose(run_onnx(tmp_path / "a.onnx", images), adapter.predict_frozen(images), atol=1e-4)


@pytest.mark.slow
def test_a_program_of_torch_gives_the_same_logits(tmp_path):
    source, images = network(), torch.rand(4, 1, 16, 16)
    source.train()
    said = ttdg.export(source, tmp_path / "a.pt2", images, format="torch", card={"site": "north"})
    assert said.startswith("torch.export gives the logits")
    assert source.training
    extra = {"card.json": ""}
    found = torch.export.load(tmp_path / "a.pt2", extra_files=extra).module()(images)
    assert torch.allclose(found, copy.deepcopy(source).eval()(images), atol=1e-5)
    assert json.loads(extra["card.json"])["site"] == "north"


def test_what_has_no_single_network_is_not_exported(tmp_path):
    images = torch.rand(2, 1, 16, 16)
    with pytest.raises(UserError, match="no single network gives its answers"):
        ttdg.export(ttdg.adapt(network(), "tent", activation="softmax"), tmp_path / "a.onnx", images)
    with pytest.raises(UserError, match="images of one size"):
        ttdg.export(network(), tmp_path / "a.onnx")
    command = ["export", "demo", "-i", str(tmp_path), "--method", "tent", "--onnx", str(tmp_path / "a.onnx")]
    assert "leaves no single network" in str(CliRunner().invoke(app, command).exception)
    assert "--onnx or with --torch" in str(CliRunner().invoke(app, ["export", "demo"]).exception)


def test_a_file_that_gives_other_logits_is_not_written(tmp_path):
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.calls = nn.Conv2d(1, 2, 1), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.conv(x) + self.calls

    with pytest.raises(UserError, match="differs from the source"):
        ttdg.export(Random(), tmp_path / "a.onnx", torch.rand(2, 1, 8, 8))
    assert not list(tmp_path.iterdir())


def test_an_export_leaves_every_module_in_its_mode(tmp_path):
    partly = network().train()
    partly[1].eval()
    ttdg.export(partly, tmp_path / "a.pt2", torch.rand(2, 1, 16, 16), format="torch")
    assert [module.training for module in partly.modules()] == [True, True, False, True, True]


def test_a_network_that_cannot_be_exported_is_refused_in_a_sentence(tmp_path, unchecked):
    class Pair(nn.Module):
        def forward(self, images):
            return images, images

    path, images = tmp_path / "out.pt2", torch.rand(2, 3, 16, 16)
    with pytest.raises(UserError, match="give a network that returns the logits alone"):
        ttdg.export(Pair(), path, images, format="torch")
    with pytest.raises(UserError, match=r"fails on images of shape \(3, 16, 16\)"):
        ttdg.export(network(), path, images, format="torch")
    with pytest.raises(UserError, match="did you mean 'torch'"):
        ttdg.export(network(), path, images[:, :1], format="torhc")
    assert not list(tmp_path.iterdir())


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(1, 8, 4, 4), nn.ConvTranspose2d(8, 2, 4, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, images):
        maps = self.patches(images)
        tokens = self.layer(maps.flatten(2).transpose(1, 2))
        return self.head(tokens.transpose(1, 2).reshape(maps.shape))


def test_a_transformer_that_learned_a_site_is_exported_to_onnx(tmp_path):
    images, fused = torch.rand(2, 1, 16, 16), torch.backends.mha.get_fastpath_enabled()
    adapter = ttdg.adapt(Transformer(), "self-training", activation="softmax", folder_steps=1, draw=2)
    ttdg.predict_site(adapter, images)
    ttdg.export(adapter, tmp_path / "a.onnx", images)
    assert torch.allclose(run_onnx(tmp_path / "a.onnx", images), adapter.predict_frozen(images), atol=1e-4)
    assert torch.backends.mha.get_fastpath_enabled() == fused


def test_what_a_format_does_not_have_is_said_in_a_sentence(tmp_path):
    images = torch.rand(2, 1, 16, 16)
    with pytest.raises(UserError, match=r"in the format 'onnx' \(.*\); export it in the other format, or in"):
        ttdg.export(network().double(), tmp_path / "a.onnx", images)
    assert not list(tmp_path.iterdir())


def test_a_network_that_learned_with_labels_is_exported_with_its_channels(tmp_path, unchecked):
    form = OutputForm(activation="sigmoid", label_sets=((), (0,), (0, 1)))
    channels, images = network(), torch.rand(2, 1, 16, 16)

    class Learned:
        def learned_network(self):
            return read_as(copy.deepcopy(channels), form, labels=True)

    ttdg.export(Learned(), tmp_path / "a.onnx", images)
    with torch.no_grad():
        expected = form.channel_logits(form.label_logits(channels.eval()(images)))
    assert torch.allclose(run_onnx(tmp_path / "a.onnx", images), expected, atol=1e-4)
