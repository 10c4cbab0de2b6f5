"""The form of ResNet-50 is told from BatchNorm statistics, on networks whose statistics were collected here."""

import pytest
import torch
from torch import nn

from ttdg.errors import UserError
from ttdg.networks import NetworkSpec, Segmenter
from ttdg.networks.strides import FORMS, better_strides, set_strides


def images(seed):
    """Smooth images: noise at a quarter of the size."""
    small = torch.randn(8, 3, 24, 24, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(small, size=96, mode="bilinear")


@pytest.fixture(scope="module")
def collected():
    """Encoders by form, whose running statistics are those of a batch with these strides."""
    found = {}
    for form in FORMS:
        torch.manual_seed(0)
        encoder = Segmenter(NetworkSpec(labels=2, strides=form)).image_encoder
        for layer in encoder.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = None
                layer.reset_running_stats()
        with torch.no_grad():
            encoder.train()(images(1))
        found[form] = encoder.eval()
    return found


@pytest.mark.parametrize("form", FORMS)
def test_statistics_fit_the_form_with_which_they_were_collected(collected, form):
    (other,) = FORMS.keys() - {form}
    encoder = collected[form]
    assert better_strides(encoder, images(2), form) is None
    set_strides(encoder, other, "resnet50")
    assert better_strides(encoder, images(2), other) == form
    assert encoder.layer3[0].conv1.stride == (FORMS[other][0],) * 2, "the network is as it was"
    set_strides(encoder, form, "resnet50")


def test_asking_changes_no_tensor_of_the_network(collected):
    encoder = collected["v1"]
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    better_strides(encoder.train(), images(3), "v1")
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert not any(layer._forward_hooks for layer in encoder.modules())
    encoder.eval()


def test_the_two_forms_have_the_same_shapes_and_other_values(collected):
    image = images(4)[:1]
    with torch.no_grad():
        v1, encoder = collected["v1"](image), collected["v1"]
        set_strides(encoder, "v1.5", "resnet50")
        other = encoder(image)
        set_strides(encoder, "v1", "resnet50")
    assert [m.shape for m in v1] == [m.shape for m in other]
    assert torch.equal(v1[1], other[1])
    assert not torch.allclose(v1[2], other[2])


def test_other_encoders_have_no_v1(collected):
    with pytest.raises(UserError, match="supported for the encoder resnet50 only, not for resnet18"):
        Segmenter(NetworkSpec(labels=2, encoder="resnet18", strides="v1"))
