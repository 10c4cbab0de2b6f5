import pytest
import torch
from safetensors.torch import save_file

from ttdg.errors import UserError
from ttdg.networks import ENCODERS, NetworkSpec, Segmenter, load_encoder

torchvision_resnet50 = {
    "conv1.weight": (64, 3, 7, 7),
    "layer1.0.downsample.0.weight": (256, 64, 1, 1),
    "layer3.5.conv2.weight": (256, 256, 3, 3),
    "layer4.2.bn3.running_var": (2048,),
}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_forward_is_decode_after_encode_at_the_image_size(encoder):
    network = Segmenter(NetworkSpec(labels=3, encoder=encoder)).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        features = network.encode(images)
        logits = network.decode(features)
        assert torch.equal(logits, network(images))
    assert logits.shape == (2, 3, 64, 96)
    assert [images.shape[-1] // f.shape[-1] for f in features] == [2, 4, 8, 16, 32]


def test_images_of_another_shape_are_refused_with_a_message():
    network = Segmenter(NetworkSpec(labels=3, encoder="light"))
    with pytest.raises(
        UserError, match=r"images, 3, height, width\), not torch\.float32 of shape \(2, 1, 64"
    ):
        network(torch.zeros(2, 1, 64, 64))


def test_the_light_network_is_a_few_megabytes():
    network = Segmenter(NetworkSpec(labels=3, encoder="light"))
    assert sum(p.numel() for p in network.parameters()) * 4 < 3e6


def test_the_spec_sets_the_number_of_image_channels():
    assert (
        Segmenter(NetworkSpec(labels=2, encoder="light", channels=1))(torch.randn(2, 1, 32, 32)).shape[1] == 2
    )


def test_resnet50_has_torchvision_names_and_shapes():
    state = Segmenter(NetworkSpec(labels=2)).unet.encoder.state_dict()
    for name, shape in torchvision_resnet50.items():
        assert tuple(state[name].shape) == shape
    assert len([name for name in state if not name.endswith("num_batches_tracked")]) == 265


def test_encoder_weights_load_from_safetensors_and_from_plain_pickles(tmp_path):
    donor, taker = (Segmenter(NetworkSpec(labels=2, encoder="resnet18")) for _ in range(2))
    state = donor.unet.encoder.state_dict() | {"fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pth")
    for name in ("a.safetensors", "b.pth"):
        load_encoder(taker, tmp_path / name)
        for key, value in taker.unet.encoder.state_dict().items():
            assert torch.equal(value, donor.unet.encoder.state_dict()[key])


def test_weights_of_another_encoder_are_refused_with_a_message(tmp_path):
    save_file(
        Segmenter(NetworkSpec(labels=2, encoder="resnet34")).unet.encoder.state_dict(),
        tmp_path / "a.safetensors",
    )
    with pytest.raises(UserError, match="does not fit encoder 'resnet18'"):
        load_encoder(Segmenter(NetworkSpec(labels=2, encoder="resnet18")), tmp_path / "a.safetensors")


def test_overflowed_float16_weights_are_refused(tmp_path):
    network = Segmenter(NetworkSpec(labels=2, encoder="resnet18"))
    state = network.unet.encoder.state_dict()
    state["bn1.running_var"] = torch.full((64,), 1e6).half()
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"bn1\.running_var.*float16"):
        load_encoder(network, tmp_path / "a.safetensors")


class Evil:
    def __reduce__(self):
        return print, ("this must never run",)


def test_a_pickle_that_would_run_code_is_not_loaded(tmp_path, capsys):
    torch.save({"conv1.weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="could run code"):
        load_encoder(Segmenter(NetworkSpec(labels=2, encoder="resnet18")), tmp_path / "evil.pth")
    assert "never run" not in capsys.readouterr().out


def test_v1_strides_move_into_the_first_convolution():
    old, new = (Segmenter(NetworkSpec(labels=2, strides=s)) for s in ("v1", "v1.5"))
    assert old.unet.encoder.layer3[0].conv1.stride == (2, 2)
    assert new.unet.encoder.layer3[0].conv1.stride == (1, 1)
    assert old.encode(torch.randn(1, 3, 64, 64))[-1].shape == new.encode(torch.randn(1, 3, 64, 64))[-1].shape


def test_an_unknown_encoder_is_reported_with_the_closest_name():
    with pytest.raises(UserError, match="did you mean 'resnet50'"):
        Segmenter(NetworkSpec(labels=2, encoder="resnet-50"))


@pytest.mark.parametrize("size", [(64, 64), (50, 70), (33, 32), (1, 1)])
def test_images_of_any_size_get_logits_of_that_size(size):
    network = Segmenter(NetworkSpec(labels=2, encoder="light")).eval()
    with torch.no_grad():
        assert network(torch.randn(1, 3, *size)).shape[-2:] == size
